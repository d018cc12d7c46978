//! The terminal: lines with ANSI escapes, a moving picture on a terminal, and plain lines
//! elsewhere.

use std::{
    env,
    io::{self, IsTerminal, Write},
    panic,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::termios::{self, LocalModes, OptionalActions, Termios};

use super::{
    board::Board,
    view::{self, Motion},
};

/// The time between two frames.
const FRAME: Duration = Duration::from_millis(50);

/// The settings of the terminal's input while the terminal is taken over; there is one terminal.
static TAKEN: Mutex<Option<Option<Termios>>> = Mutex::new(None);

/// The text without its escapes.
pub fn plain(line: &str) -> String {
    clipped(line, usize::MAX, false)
}

/// The text cut off at this column, with or without its escapes. Every character takes one column.
fn clipped(line: &str, columns: usize, is_styled: bool) -> String {
    let (mut text, mut width, mut in_escape) = (String::new(), 0, false);
    for c in line.chars() {
        if c == '\x1b' {
            in_escape = true;
        }
        if in_escape && is_styled || !in_escape && width < columns {
            text.push(c);
        }
        width += usize::from(!in_escape);
        in_escape &= c != 'm';
    }
    text
}

/// The place where the board is shown.
pub struct Display {
    board: Arc<Board>,
    mode: Mode,
}

enum Mode {
    /// A thread that draws, until the flag is set.
    Picture(Arc<AtomicBool>, Option<JoinHandle<()>>),
    /// Lines that are printed: the shares since the last table, and the number of messages printed.
    Lines(Motion, usize),
}

impl Display {
    /// Takes the terminal over if there is one.
    pub fn start(board: &Arc<Board>) -> io::Result<Self> {
        let mode = match is_usable() {
            false => Mode::Lines(Motion::exact(), 0),
            true => {
                take_over()?;
                let (over, drawn) = (Arc::new(AtomicBool::new(false)), Arc::clone(board));
                let done = Arc::clone(&over);
                let thread = thread::spawn(move || {
                    if draw(&drawn, &done).is_err() {
                        drawn.stop.store(true, Ordering::Relaxed);
                    }
                });
                Mode::Picture(over, Some(thread))
            }
        };
        Ok(Self { board: Arc::clone(board), mode })
    }

    /// Adds a message.
    pub fn say(&mut self, text: impl Into<String>) {
        let when = self.board.elapsed();
        self.board.state().said.push((when, text.into()));
        self.print_said();
    }

    /// Prints the state of one Service or of all, where there is no picture.
    pub fn table(&mut self, role: Option<usize>) {
        self.print_said();
        let Mode::Lines(motion, _) = &mut self.mode else { return };
        let state = self.board.state().clone();
        motion.advance(&state);
        let blocks = view::services(&state, motion, false).into_iter().enumerate();
        let wanted = blocks.filter(|(index, _)| role.is_none_or(|only| only == *index));
        let lines: Vec<String> = wanted.flat_map(|(_, block)| block).collect();
        self.print(&lines);
    }

    /// Lets the next table, where there is no picture, begin to count from now.
    pub fn restart_table(&mut self) {
        if let Mode::Lines(motion, _) = &mut self.mode {
            motion.advance(&self.board.state());
        }
    }

    /// Ends the picture, if there is one, and prints lines.
    pub fn finish(mut self, lines: &[String]) {
        self.end();
        self.print(lines);
    }

    /// Prints the messages that are not printed yet.
    fn print_said(&mut self) {
        let Mode::Lines(_, printed) = &mut self.mode else { return };
        let said = self.board.state().said.clone();
        let new = said.iter().skip(*printed);
        let lines: Vec<String> =
            new.map(|(when, text)| format!("{:6.2} s  {text}", when.as_secs_f64())).collect();
        *printed = said.len();
        self.print(&lines);
    }

    fn print(&self, lines: &[String]) {
        let is_styled = matches!(self.mode, Mode::Picture(..));
        let text: String = lines
            .iter()
            .map(|line| match is_styled {
                true => line.clone() + "\n",
                false => plain(line).trim_end().to_owned() + "\n",
            })
            .collect();
        let mut output = io::stdout().lock();
        if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
            // The reader of the pipe is gone.
            self.board.stop.store(true, Ordering::Relaxed);
        }
    }

    fn end(&mut self) {
        if let Mode::Picture(over, thread) = &mut self.mode {
            over.store(true, Ordering::Relaxed);
            thread.take().map(JoinHandle::join);
            leave();
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.end();
    }
}

/// Draws until the show is over or the end is requested.
fn draw(board: &Board, over: &AtomicBool) -> io::Result<()> {
    let mut motion = Motion::smooth();
    while !over.load(Ordering::Relaxed) && !board.stop.load(Ordering::Relaxed) {
        let state = board.state().clone();
        motion.advance(&state);
        let (columns, rows) = size()?;
        // In one write, and shown at once where the terminal knows synchronized updates.
        let mut bytes = "\x1b[?2026h".to_owned();
        for (row, line) in view::frame(&state, &motion, board.elapsed(), rows).iter().enumerate() {
            bytes += &format!("\x1b[{};1H{}\x1b[0m\x1b[K", row + 1, clipped(line, columns, true));
        }
        bytes += "\x1b[1;1H\x1b[?2026l";
        let mut output = io::stdout().lock();
        output.write_all(bytes.as_bytes())?;
        output.flush()?;
        drop(output);
        thread::sleep(FRAME);
    }
    Ok(())
}

/// The numbers of columns and rows.
fn size() -> io::Result<(usize, usize)> {
    let size = termios::tcgetwinsize(io::stdout())?;
    Ok((size.ws_col.into(), size.ws_row.into()))
}

/// Whether standard output is a terminal that is meant to be drawn on, and large enough.
fn is_usable() -> bool {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_some_and(|term| term != "dumb")
        && size().is_ok_and(|(columns, rows)| columns >= 80 && rows >= 24)
}

/// Takes the terminal over. A panic restores it, too.
fn take_over() -> io::Result<()> {
    let input = termios::tcgetattr(io::stdin()).ok();
    *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(input.clone());
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
    write(b"\x1b[?1049h\x1b[?25l\x1b[2J")
}

/// Restores the terminal, once.
fn leave() {
    let Some(input) = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let _ = write(b"\x1b[0m\x1b[?25h\x1b[?1049l");
    if let Some(input) = input {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &input);
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout();
    output.write_all(bytes)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_clipped_by_characters_and_keep_their_escapes() {
        let line = "\x1b[1ma→b\x1b[0m██";
        assert_eq!((plain(line), clipped(line, 2, false)), ("a→b██".into(), "a→".into()));
        assert_eq!(clipped(line, 4, true), "\x1b[1ma→b\x1b[0m█");
    }
}
