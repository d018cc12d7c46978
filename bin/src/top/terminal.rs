//! The terminal while the screen is drawn, and the loop around keys, answers and signals.

use std::{
    env,
    io::{self, Stdout, Write},
    panic,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use ratatui_core::{
    style::{Color, Style},
    terminal::Terminal,
};
use ratatui_termion::{
    TermionBackend,
    termion::{
        clear, cursor,
        event::Key,
        input::TermRead,
        raw::{IntoRawMode, RawTerminal},
        screen::{ToAlternateScreen, ToMainScreen},
    },
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH},
    iterator::Signals,
    low_level,
};
use switchyard_core::error::ErrorChain;

use super::{
    TopError, draw,
    view::{Action, Cover, View},
};
use crate::explain::{
    client::{self, ClientError},
    server::Request,
    top::Top,
};

/// The time between two questions to the proxy.
const PERIOD: Duration = Duration::from_secs(2);

/// The terminal in raw mode with its other screen, until this value goes.
struct Screen {
    raw: Arc<RawTerminal<Stdout>>,
    terminal: Terminal<TermionBackend<Stdout>>,
}

impl Screen {
    fn new() -> io::Result<Self> {
        let raw = Arc::new(io::stdout().into_raw_mode()?);
        let (shared, report) = (Arc::clone(&raw), panic::take_hook());
        // The message of a panic would go with the other screen.
        panic::set_hook(Box::new(move |panic| {
            restore(&shared);
            report(panic);
        }));
        let terminal = enter(&raw).inspect_err(|_| restore(&raw))?;
        Ok(Self { raw, terminal })
    }

    /// Gives the terminal back until the program is continued.
    fn suspend(&mut self) -> io::Result<()> {
        restore(&self.raw);
        low_level::emulate_default_handler(SIGTSTP)?;
        self.terminal = enter(&self.raw)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(&self.raw);
    }
}

/// Sets the terminal, and returns it with nothing drawn.
fn enter(raw: &RawTerminal<Stdout>) -> io::Result<Terminal<TermionBackend<Stdout>>> {
    raw.activate_raw_mode()?;
    write!(io::stdout(), "{ToAlternateScreen}{}{}", cursor::Hide, clear::All)?;
    Terminal::new(TermionBackend::new(io::stdout()))
}

/// Restores the terminal. A failure cannot be reported anywhere.
fn restore(raw: &RawTerminal<Stdout>) {
    let mut output = io::stdout();
    let _ = write!(output, "{}{ToMainScreen}", cursor::Show).and_then(|()| output.flush());
    let _ = raw.suspend_raw_mode();
}

/// A reason for the loop to go on.
enum Event {
    Key(Key),
    /// The terminal is gone.
    NoInput,
    Signal(i32),
    Top(Result<Box<Top>, ClientError>),
    Explained(String, Result<String, ClientError>),
}

/// Asks the proxy, on a thread of its own: keys must not wait for it. `None` is about everything.
fn ask(path: PathBuf, events: Sender<Event>) -> Sender<Option<String>> {
    let (questions, asked) = mpsc::channel::<Option<String>>();
    thread::spawn(move || {
        for question in asked {
            let answered = match question {
                None => Event::Top(client::value(&path, &Request::Top)),
                Some(service) => {
                    let explained = client::ask(&path, &Request::Explain(service.clone()), false);
                    Event::Explained(service, explained.map(|(_, text)| text))
                }
            };
            if events.send(answered).is_err() {
                return;
            }
        }
    });
    questions
}

/// Shows the screen until `q` is pressed or a signal ends it, which is returned.
pub fn show(path: PathBuf) -> Result<Option<i32>, TopError> {
    let (sender, events) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH])?;
    let signalled = sender.clone();
    thread::spawn(move || {
        signals.forever().try_for_each(|signal| signalled.send(Event::Signal(signal)))
    });
    let mut screen = Screen::new()?;
    let pressed = sender.clone();
    thread::spawn(move || {
        let keys = io::stdin().keys().map_while(Result::ok).map(Event::Key);
        keys.chain([Event::NoInput]).try_for_each(|event| pressed.send(event))
    });
    let questions = ask(path, sender);
    let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let wrong = if colours { Style::new().fg(Color::Red) } else { Style::new().bold() };
    let (mut view, mut next, mut is_asked) = (View::default(), Instant::now(), false);
    let mut is_explaining = false;
    loop {
        screen.terminal.draw(|frame| draw::draw(frame, &view, wrong))?;
        let is_due = Instant::now() >= next;
        if is_due && !is_asked && !view.is_paused {
            questions.send(None).map_err(|_| TopError::Asking)?;
            (is_asked, next) = (true, Instant::now() + PERIOD);
        }
        let idle = is_asked || view.is_paused;
        let left = if idle { PERIOD } else { next.saturating_duration_since(Instant::now()) };
        match events.recv_timeout(left) {
            Ok(Event::Top(answer)) => {
                is_asked = false;
                view.error = answer.map(|top| view.set_top(*top)).err().map(chain);
            }
            Ok(Event::Explained(service, answer)) => {
                is_explaining = false;
                let cover = |text| Cover::Explained { service, text, first: 0 };
                view.error = answer.map(|text| view.cover = Some(cover(text))).err().map(chain);
            }
            Ok(Event::Key(key)) => match view.key(key) {
                Action::Draw => {}
                Action::Quit => return Ok(None),
                Action::Suspend => screen.suspend()?,
                // One question at a time.
                Action::Explain(_) if is_explaining => {}
                Action::Explain(service) => {
                    is_explaining = true;
                    questions.send(Some(service)).map_err(|_| TopError::Asking)?;
                }
            },
            Ok(Event::NoInput) => return Ok(None),
            Ok(Event::Signal(SIGTSTP)) => screen.suspend()?,
            // The next drawing finds the size.
            Ok(Event::Signal(SIGWINCH)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Signal(signal)) => return Ok(Some(signal)),
            Err(RecvTimeoutError::Disconnected) => return Err(TopError::Asking),
        }
    }
}

fn chain(error: ClientError) -> String {
    ErrorChain(&error).to_string()
}
