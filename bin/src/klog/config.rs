//! The configuration of a log.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's text.
    #[default]
    Text,
    /// The JSON of Kubernetes' components, one object a line.
    Json,
}

/// The configuration of a log: what is logged, in which format, and to which stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    pub format: LogFormat,
    /// `-v`: the highest verbosity that is logged.
    pub verbosity: u32,
    /// `--vmodule`: a higher verbosity for the files whose names match a pattern. The first
    /// pattern that matches counts. `*` matches any text and `?` matches one byte.
    pub vmodule: Vec<(String, u32)>,
    /// Whether only errors go to standard error, and the other lines to standard output.
    pub split_stream: bool,
    /// With `split_stream`: how many bytes of lines for standard output may wait to be written.
    pub info_buffer_size: usize,
    /// With `split_stream`: the longest time that these bytes wait.
    pub flush_frequency: Duration,
}
