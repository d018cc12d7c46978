//! The terminal: taken over for the time of the demo, and restored in any case.

use std::{
    io::{self, IsTerminal, Write},
    panic,
    sync::{Mutex, PoisonError},
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    execute, queue,
    style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor},
    terminal::{
        self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate,
        EnterAlternateScreen, LeaveAlternateScreen,
    },
};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};

use crate::view::{Line, Style};

/// The state of the terminal that has to be restored; there is one terminal.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

struct Taken {
    /// The terminal's settings for input, if standard input is a terminal.
    input: Option<Termios>,
}

/// The terminal, taken over. Dropping the value restores the terminal, and so does a panic.
pub struct Screen {
    _private: (),
}

impl Screen {
    /// Takes the terminal over.
    pub fn enter() -> io::Result<Self> {
        let input = termios::tcgetattr(io::stdin()).ok();
        *taken() = Some(Taken { input: input.clone() });
        let screen = Self { _private: () };
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        if let Some(mut quiet) = input {
            // What is typed would be written into the picture. Ctrl-C still works.
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &quiet);
        }
        execute!(io::stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws a frame over the last one, in one write.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(8 * 1024);
        queue!(bytes, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(bytes, MoveTo(0, row))?;
            write_line(&mut bytes, line)?;
            queue!(bytes, Clear(ClearType::UntilNewLine))?;
        }
        queue!(bytes, MoveTo(0, 0), EndSynchronizedUpdate)?;
        let mut output = io::stdout().lock();
        output.write_all(&bytes)?;
        output.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// The numbers of columns and rows.
pub fn size() -> io::Result<(usize, usize)> {
    terminal::size().map(|(columns, rows)| (columns.into(), rows.into()))
}

/// Whether standard output is a terminal that is meant to be drawn on, and large enough.
pub fn is_usable() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_some_and(|term| term != "dumb")
        && size().is_ok_and(|(columns, rows)| columns >= 80 && rows >= 24)
}

/// Whether the locale, if there is one, has the characters for bars.
pub fn has_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// Writes a line with its styles, without an end of line.
pub fn write_line(output: &mut impl Write, line: &Line) -> io::Result<()> {
    for (style, text) in line.spans() {
        match style {
            Style::Plain => {}
            Style::Bold => queue!(output, SetAttribute(Attribute::Bold))?,
            Style::Dim => queue!(output, SetForegroundColor(Color::DarkGrey))?,
            Style::Near => queue!(output, SetForegroundColor(Color::DarkCyan))?,
            Style::Far => queue!(output, SetForegroundColor(Color::DarkBlue))?,
            Style::Good => queue!(output, SetForegroundColor(Color::DarkGreen))?,
            Style::Bad => {
                queue!(output, SetForegroundColor(Color::DarkRed), SetAttribute(Attribute::Bold))?
            }
            Style::Title => {
                queue!(output, SetAttribute(Attribute::Bold), SetAttribute(Attribute::Reverse))?
            }
        }
        queue!(output, Print(text))?;
        if *style != Style::Plain {
            queue!(output, ResetColor, SetAttribute(Attribute::Reset))?;
        }
    }
    Ok(())
}

/// Restores the terminal, once.
fn leave() {
    let Some(Taken { input }) = taken().take() else { return };
    let _ = execute!(
        io::stdout(),
        ResetColor,
        SetAttribute(Attribute::Reset),
        Show,
        LeaveAlternateScreen
    );
    if let Some(input) = input {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &input);
    }
}

fn taken() -> std::sync::MutexGuard<'static, Option<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}
