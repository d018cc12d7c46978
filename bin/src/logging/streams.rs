//! Where log lines go: all to standard error, or with split streams (`logging.options`) errors there
//! and the rest to standard output, where they may wait in a buffer.

use std::{
    io::{self, BufWriter, Write},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::config::settings::{LogFormat, LogSettings};

/// Standard output, or what stands for it in a test.
type Output = Box<dyn Write + Send>;

/// Chooses the stream of each line. Clones share the buffer.
#[derive(Clone)]
pub(super) enum Streams {
    /// Everything goes to standard error, at once.
    Joined,
    /// See the [module's documentation](self).
    Split {
        /// Lines of this level, or a worse one, go to standard error.
        errors: Level,
        /// The others.
        info: Info,
    },
}

/// Lines that are no errors, as far as they have not been written yet.
#[derive(Clone)]
pub(super) struct Info {
    lines: Arc<Mutex<BufWriter<Output>>>,
    is_buffered: bool,
}

/// Writes one line.
pub(super) enum Line {
    Error(io::Stderr),
    Info(Info),
}

impl Streams {
    /// The streams that the settings ask for.
    pub(super) fn new(settings: &LogSettings) -> Self {
        Self::writing_to(settings, Box::new(io::stdout()))
    }

    fn writing_to(settings: &LogSettings, output: Output) -> Self {
        if !settings.split_stream {
            return Self::Joined;
        }
        // klog's text takes warnings for errors, and its JSON does not know them.
        let errors = match settings.format {
            LogFormat::Text => Level::WARN,
            LogFormat::Json => Level::ERROR,
        };
        let size = settings.info_buffer_size;
        let lines = Arc::new(Mutex::new(BufWriter::with_capacity(size, output)));
        Self::Split { errors, info: Info { lines, is_buffered: size > 0 } }
    }

    /// Writes what has waited.
    pub(super) fn flush(&self) {
        if let Self::Split { info, .. } = self {
            // If it cannot be written there is nowhere to say so.
            let _ = info.locked(Write::flush);
        }
    }

    /// Writes what waits at least that often, from now on.
    pub(super) fn flush_every(&self, period: Duration) -> io::Result<()> {
        let Self::Split { info: Info { is_buffered: true, .. }, .. } = self else {
            return Ok(());
        };
        let streams = self.clone();
        let flush = move || {
            loop {
                thread::sleep(period);
                streams.flush();
            }
        };
        thread::Builder::new().name("log-flush".into()).spawn(flush).map(drop)
    }
}

impl<'w> MakeWriter<'w> for Streams {
    type Writer = Line;

    /// For lines without a level, of which there are none.
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

    /// A whole line is written at once, so that lines of several threads do not mix.
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
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// How many lines reach standard output before a flush, and after it.
    fn reach(format: LogFormat, split_stream: bool, info_buffer_size: usize) -> [usize; 2] {
        let settings =
            LogSettings { format, split_stream, info_buffer_size, ..LogSettings::default() };
        let sink = Sink::default();
        let streams = Streams::writing_to(&settings, Box::new(sink.clone()));
        let lines = || sink.0.lock().unwrap().split(|byte| *byte == b'\n').count() - 1;
        let log = || {
            tracing::info!("one");
            tracing::warn!("two");
            tracing::error!("three");
            tracing::info!("four");
        };
        let subscriber = crate::logging::subscriber(&settings, streams.clone());
        tracing::subscriber::with_default(subscriber, log);
        let before = lines();
        streams.flush();
        [before, lines()]
    }

    #[test]
    fn only_what_is_no_error_goes_to_standard_output() {
        assert_eq!(reach(LogFormat::Text, false, 0), [0, 0]);
        assert_eq!(reach(LogFormat::Text, true, 0), [2, 2], "warnings are errors");
        assert_eq!(reach(LogFormat::Json, true, 0), [3, 3], "warnings are none");
    }

    #[test]
    fn lines_wait_until_the_buffer_is_full() {
        assert_eq!(reach(LogFormat::Text, true, 1 << 16), [0, 2]);
        assert_eq!(reach(LogFormat::Json, true, 1), [3, 3], "no line is that short");
        assert_eq!(reach(LogFormat::Text, false, 1 << 16), [0, 0], "without a split none waits");
    }
}
