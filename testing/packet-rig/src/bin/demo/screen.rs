//! The terminal: a moving picture, or lines where there is no terminal.

use std::{
    io::{self, Write},
    sync::atomic::Ordering,
    thread::{self, JoinHandle},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use rustix::termios;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

use super::{
    board::Board,
    view::{self, Motion},
};

const FRAME: Duration = Duration::from_millis(50);
/// Another screen, without a cursor, whose lines end at its edge; and the way back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

pub struct Display {
    board: &'static Board,
    /// The thread that draws, until the show is over.
    picture: Option<JoinHandle<()>>,
    /// Without a picture: the shares since the last table, and the number of messages printed.
    motion: Motion,
    printed: usize,
}

impl Display {
    /// Takes the terminal over if there is one that is large enough.
    pub fn start(board: &'static Board) -> io::Result<Self> {
        let is_large = |(columns, rows)| columns >= 80 && rows >= 24;
        let is_usable = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        let mut picture = None;
        if is_usable && size().is_ok_and(is_large) {
            write(ENTER)?;
            let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
            thread::spawn(move || {
                for signal in &mut signals {
                    let _ = write(LEAVE);
                    let _ = emulate_default_handler(signal);
                }
            });
            picture = Some(thread::spawn(|| drop(draw(board))));
        }
        Ok(Self { board, picture, motion: Motion::exact(), printed: 0 })
    }

    pub fn say(&mut self, text: impl Into<String>) {
        let when = self.board.elapsed();
        self.board.state().said.push((when, text.into()));
        self.print_said();
    }

    /// Prints the state of one Service or of all, where there is no picture.
    pub fn table(&mut self, role: Option<usize>) {
        self.print_said();
        if self.picture.is_none() {
            let state = self.board.state().clone();
            self.motion.advance(&state);
            let blocks = view::services(&state, &self.motion).into_iter().enumerate();
            let wanted = blocks.filter(|(index, _)| role.is_none_or(|only| only == *index));
            print(wanted.flat_map(|(_, block)| block).filter(|line| !line.is_empty()));
        }
    }

    pub fn finish(self, lines: Vec<String>) {
        drop(self);
        print(lines);
    }

    fn print_said(&mut self) {
        if self.picture.is_none() {
            let said = self.board.state().said.clone();
            let line =
                |(when, text): &(Duration, String)| format!("{:6.2} s  {text}", when.as_secs_f64());
            print(said.iter().skip(self.printed).map(line));
            self.printed = said.len();
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(thread) = self.picture.take() {
            self.board.is_over.store(true, Ordering::Relaxed);
            let _ = thread.join();
            let _ = write(LEAVE);
        }
    }
}

/// Prints lines, without escapes where these have no effect.
fn print(lines: impl IntoIterator<Item = String>) {
    let mut output = anstream::stdout().lock();
    lines.into_iter().for_each(|line| drop(writeln!(output, "{line}")));
}

/// Draws until the show is over.
fn draw(board: &Board) -> io::Result<()> {
    let mut motion = Motion::smooth();
    while !board.is_over.load(Ordering::Relaxed) {
        let state = board.state().clone();
        motion.advance(&state);
        // In one write, and shown at once where the terminal knows synchronized updates.
        let mut frame = "\x1b[?2026h".to_owned();
        let lines = view::frame(&state, &motion, board.elapsed(), size()?.1);
        for (row, line) in lines.iter().enumerate() {
            frame += &format!("\x1b[{};1H{line}\x1b[0m\x1b[K", row + 1);
        }
        write(&(frame + "\x1b[1;1H\x1b[?2026l"))?;
        thread::sleep(FRAME);
    }
    Ok(())
}

fn size() -> io::Result<(usize, usize)> {
    let size = termios::tcgetwinsize(io::stdout())?;
    Ok((size.ws_col.into(), size.ws_row.into()))
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
