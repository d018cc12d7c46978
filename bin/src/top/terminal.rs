//! The terminal: its mode while the screen is drawn, its size and keys, and the loop around both.

use std::{
    env, fs,
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    panic,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio,
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH},
    flag, low_level,
};
use switchyard_core::error::ErrorChain;

use super::{
    TopError, draw,
    view::{self, Action, Cover, View},
};
use crate::explain::{
    client::{self, ClientError},
    server::Request,
    top::Top,
};

/// The time between two questions to the proxy.
const PERIOD: Duration = Duration::from_secs(2);
/// The other screen, without a cursor and without lines that go on in the next.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal in raw mode, until this value goes.
struct Screen(Termios);

impl Screen {
    fn enter() -> Result<Self, TopError> {
        let before = tcgetattr(stdio::stdin()).map_err(TopError::Terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdio::stdin(), OptionalActions::Now, &raw).map_err(TopError::Terminal)?;
        let screen = Self(before);
        let (saved, report) = (screen.0.clone(), panic::take_hook());
        // The message of a panic would go with the other screen.
        panic::set_hook(Box::new(move |panic| {
            restore(&saved);
            report(panic);
        }));
        put(ENTER)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

/// Restores the terminal. A failure cannot be reported anywhere.
fn restore(before: &Termios) {
    let _ = put(LEAVE);
    let _ = tcsetattr(stdio::stdin(), OptionalActions::Now, before);
}

fn put(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// The width and height of the terminal.
fn size() -> (usize, usize) {
    let known = tcgetwinsize(stdio::stdout()).ok();
    let known = known.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// An answer of the proxy.
enum Answered {
    Top(Result<Box<Top>, ClientError>),
    Explained(String, Result<String, ClientError>),
}

/// Asks the proxy, on a thread of its own: keys must not wait for it. `None` is about everything.
fn ask(path: PathBuf, mut wake: UnixStream) -> (Sender<Option<String>>, Receiver<Answered>) {
    let (questions, asked) = mpsc::channel::<Option<String>>();
    let (answer, answers) = mpsc::channel();
    thread::spawn(move || {
        for question in asked {
            let answered = match question {
                None => Answered::Top(client::value(&path, &Request::Top)),
                Some(service) => {
                    let explained = client::ask(&path, &Request::Explain(service.clone()), false);
                    Answered::Explained(service, explained.map(|(_, text)| text))
                }
            };
            if answer.send(answered).is_err() || wake.write_all(b"a").is_err() {
                return;
            }
        }
    });
    (questions, answers)
}

/// Shows the screen until `q` is pressed or a signal ends it, which is returned.
pub fn show(path: PathBuf) -> Result<Option<i32>, TopError> {
    let (mut woken, wake) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    let ended = Arc::<AtomicUsize>::default();
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        flag::register_usize(signal, Arc::clone(&ended), signal as usize)?;
        low_level::pipe::register(signal, wake.try_clone()?)?;
    }
    low_level::pipe::register(SIGWINCH, wake.try_clone()?)?;
    let (questions, answers) = ask(path, wake);
    let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // Keys are read from the terminal itself, without a buffer that `poll` does not see.
    let mut input = fs::File::from(rustix::io::dup(stdio::stdin()).map_err(TopError::Terminal)?);
    let _screen = Screen::enter()?;
    let (mut view, mut next, mut is_asked) = (View::default(), Instant::now(), false);
    let mut is_explaining = false;
    loop {
        put(&draw::painted(&draw::draw(&view, size()), colours))?;
        let is_due = Instant::now() >= next;
        if is_due && !is_asked && !view.is_paused {
            questions.send(None).map_err(|_| TopError::Asking)?;
            (is_asked, next) = (true, Instant::now() + PERIOD);
        }
        let idle = is_asked || view.is_paused;
        let left = if idle { PERIOD } else { next.saturating_duration_since(Instant::now()) };
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut waited = [PollFd::new(&input, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        match poll(&mut waited, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TopError::Terminal(error)),
        }
        let has_input = !waited[0].revents().is_empty();
        match ended.load(Relaxed) {
            0 => {}
            signal => return Ok(i32::try_from(signal).ok()),
        }
        while woken.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
        for answered in answers.try_iter() {
            view.error = match answered {
                Answered::Top(Ok(top)) => {
                    is_asked = false;
                    view.set_top(*top);
                    None
                }
                Answered::Top(Err(error)) => {
                    is_asked = false;
                    Some(ErrorChain(&error).to_string())
                }
                Answered::Explained(service, Ok(text)) => {
                    is_explaining = false;
                    view.cover = Some(Cover::Explained { service, text, first: 0 });
                    None
                }
                Answered::Explained(_, Err(error)) => {
                    is_explaining = false;
                    Some(ErrorChain(&error).to_string())
                }
            };
        }
        if !has_input {
            continue;
        }
        let mut bytes = [0; 256];
        let read = match input.read(&mut bytes) {
            // The terminal is gone.
            Ok(0) => return Ok(None),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Ok(None),
        };
        for key in view::keys(&bytes[..read]) {
            match view.key(key) {
                Action::Draw => {}
                Action::Quit => return Ok(None),
                // One question at a time.
                Action::Explain(_) if is_explaining => {}
                Action::Explain(service) => {
                    is_explaining = true;
                    questions.send(Some(service)).map_err(|_| TopError::Asking)?;
                }
            }
        }
    }
}
