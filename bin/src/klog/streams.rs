//! The streams of log lines. Without split streams (`logging.options`), all lines go to standard
//! error. With split streams, errors go to standard error, and the other lines to standard output,
//! where lines may wait in a buffer.

use std::{
    io::{self, BufWriter, Write},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::klog::config::{LogConfig, LogFormat};

/// Standard output, or its replacement in a test.
type Output = Box<dyn Write + Send>;

/// The choice of a stream for each line. Clones share the buffer.
#[derive(Clone)]
pub(crate) enum Streams {
    /// All lines go to standard error, unbuffered.
    Joined,
    /// Errors go to standard error, and the other lines to standard output.
    Split {
        /// The mildest level whose lines go to standard error.
        errors: Level,
        /// The lines of the other levels.
        info: Info,
    },
}

/// Standard output, and the lines that wait to be written there.
#[derive(Clone)]
pub(crate) struct Info {
    lines: Arc<Mutex<BufWriter<Output>>>,
    is_buffered: bool,
}

/// The writer of one line.
pub(crate) enum Line {
    Error(io::Stderr),
    Info(Info),
}

impl Streams {
    /// Opens the streams that the configuration asks for. If lines are buffered, a thread writes
    /// those that wait once in each period.
    pub(crate) fn open(config: &LogConfig) -> io::Result<Self> {
        Self::writing_to(config, Box::new(io::stdout()))
    }

    fn writing_to(config: &LogConfig, output: Output) -> io::Result<Self> {
        if !config.split_stream {
            return Ok(Self::Joined);
        }
        // klog's text format treats warnings as errors. Its JSON has no warnings.
        let errors = match config.format {
            LogFormat::Text => Level::WARN,
            LogFormat::Json => Level::ERROR,
        };
        let size = config.info_buffer_size;
        let lines = Arc::new(Mutex::new(BufWriter::with_capacity(size, output)));
        let streams = Self::Split { errors, info: Info { lines, is_buffered: size > 0 } };
        if size > 0 {
            let (waiting, period) = (streams.clone(), config.flush_frequency);
            let flush = move || {
                loop {
                    thread::sleep(period);
                    waiting.flush();
                }
            };
            thread::Builder::new().name("log-flush".into()).spawn(flush)?;
        }
        Ok(streams)
    }

    /// Writes the lines that wait.
    pub(crate) fn flush(&self) {
        if let Self::Split { info, .. } = self {
            // There is no other place to report a failure of the log.
            let _ = info.locked(Write::flush);
        }
    }
}

impl<'w> MakeWriter<'w> for Streams {
    type Writer = Line;

    /// Returns the writer of lines without a level. No line is without.
    fn make_writer(&'w self) -> Line {
        Line::Error(io::stderr())
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Line {
        match self {
            Self::Split { errors, info } if metadata.level() > errors => Line::Info(info.clone()),
            _ => self.make_writer(),
        }
    }
}

impl Info {
    fn locked<T>(&self, act: impl FnOnce(&mut BufWriter<Output>) -> T) -> T {
        act(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Error(stream) => stream.write(bytes),
            Self::Info(info) => info.locked(|lines| lines.write(bytes)),
        }
    }

    /// Writes a whole line at once, so that the lines of several threads do not mix.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Error(stream) => stream.write_all(bytes),
            Self::Info(info) => info.locked(|lines| {
                lines.write_all(bytes)?;
                if info.is_buffered { Ok(()) } else { lines.flush() }
            }),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::klog::tests::Sink;

    /// Returns how many lines standard output has before a flush, and after it.
    fn reach(format: LogFormat, split_stream: bool, info_buffer_size: usize) -> [usize; 2] {
        let flush_frequency = Duration::from_secs(3600);
        let config = LogConfig {
            format,
            split_stream,
            info_buffer_size,
            flush_frequency,
            ..Default::default()
        };
        let sink = Sink::default();
        let streams = Streams::writing_to(&config, Box::new(sink.clone())).unwrap();
        let lines = || sink.0.lock().unwrap().split(|byte| *byte == b'\n').count() - 1;
        let log = || {
            tracing::info!("one");
            tracing::warn!("two");
            tracing::error!("three");
            tracing::info!("four");
        };
        let subscriber = crate::klog::subscriber(&config, streams.clone());
        tracing::subscriber::with_default(subscriber, log);
        let before = lines();
        streams.flush();
        [before, lines()]
    }

    #[test]
    fn lines_that_are_not_errors_go_to_standard_output() {
        assert_eq!(reach(LogFormat::Text, false, 0), [0, 0]);
        assert_eq!(reach(LogFormat::Text, true, 0), [2, 2], "warnings are errors");
        assert_eq!(reach(LogFormat::Json, true, 0), [3, 3], "warnings are not errors");
    }

    #[test]
    fn lines_wait_no_longer_than_the_period() {
        let (split_stream, info_buffer_size) = (true, 1 << 16);
        let flush_frequency = Duration::from_millis(1);
        let config =
            LogConfig { split_stream, info_buffer_size, flush_frequency, ..Default::default() };
        let sink = Sink::default();
        let streams = Streams::writing_to(&config, Box::new(sink.clone())).unwrap();
        let subscriber = crate::klog::subscriber(&config, streams);
        tracing::subscriber::with_default(subscriber, || tracing::info!("one"));
        test_netns::wait::until("the line is written", || !sink.0.lock().unwrap().is_empty());
    }

    #[test]
    fn lines_wait_until_the_buffer_is_full() {
        assert_eq!(reach(LogFormat::Text, true, 1 << 16), [0, 2]);
        assert_eq!(reach(LogFormat::Json, true, 1), [3, 3], "no line is that short");
        assert_eq!(
            reach(LogFormat::Text, false, 1 << 16),
            [0, 0],
            "without a split, no line waits"
        );
    }
}
