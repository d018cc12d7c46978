//! The display of the board: a moving picture on a terminal, plain lines elsewhere.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    board::Board,
    error::{DemoError, Result},
    screen::{self, Screen},
    stop::Stop,
    view::{self, Glyphs, Line, Motion, Style},
};

/// The time between two frames.
const FRAME: Duration = Duration::from_millis(50);

/// The place where the board is shown.
pub struct Display {
    board: Arc<Board>,
    stop: Stop,
    mode: Mode,
}

enum Mode {
    Picture(Picture),
    Lines(Lines),
}

/// Lines that are printed.
struct Lines {
    motion: Motion,
    /// The number of messages that are printed.
    printed: usize,
}

/// A thread that draws.
struct Picture {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Display {
    /// Takes the terminal over if there is one.
    pub fn start(board: &Arc<Board>, stop: &Stop) -> Result<Self> {
        let mode = match screen::is_usable() {
            true => Mode::Picture(
                Picture::start(board, stop).map_err(DemoError::io("draw on the terminal"))?,
            ),
            false => Mode::Lines(Lines { motion: Motion::exact(), printed: 0 }),
        };
        Ok(Self { board: Arc::clone(board), stop: stop.clone(), mode })
    }

    /// Adds a message.
    pub fn say(&mut self, text: impl Into<String>) {
        let when = self.board.elapsed();
        self.board.state().said.push((when, text.into()));
        self.print_said();
    }

    /// Prints the state of all Services, where there is no picture.
    pub fn table(&mut self) {
        self.print_services(|_| true);
    }

    /// Prints the state of one Service, where there is no picture.
    pub fn table_of(&mut self, role: usize) {
        self.print_services(|index| index == role);
    }

    /// Lets the next table, where there is no picture, begin to count from now.
    pub fn restart_table(&mut self) {
        if let Mode::Lines(lines) = &mut self.mode {
            lines.motion.advance(&self.board.state());
        }
    }

    /// Ends the picture, if there is one, and prints lines.
    pub fn finish(self, lines: &[Line]) -> io::Result<()> {
        let is_styled = match self.mode {
            Mode::Picture(picture) => {
                drop(picture);
                true
            }
            Mode::Lines(_) => false,
        };
        let mut output = io::stdout().lock();
        for line in lines {
            match is_styled {
                true => screen::write_line(&mut output, line)?,
                false => write!(output, "{}", line.text())?,
            }
            writeln!(output)?;
        }
        output.flush()
    }

    /// Prints the messages, of the script and about failures, that are not printed yet.
    fn print_said(&mut self) {
        let Mode::Lines(lines) = &mut self.mode else { return };
        let said = self.board.state().said.clone();
        let new = said.get(lines.printed..).unwrap_or_default();
        lines.printed = said.len();
        let line = |(when, text): &(Duration, String)| {
            Line::new().with(Style::Plain, format!("{:6.2} s  {text}", when.as_secs_f64()))
        };
        self.print(&new.iter().map(line).collect::<Vec<_>>());
    }

    fn print_services(&mut self, wanted: impl Fn(usize) -> bool) {
        self.print_said();
        let Mode::Lines(Lines { motion, .. }) = &mut self.mode else { return };
        let state = self.board.state().clone();
        motion.advance(&state);
        let lines = view::services(&state, motion, Glyphs::ASCII, false);
        let lines: Vec<Line> = lines
            .into_iter()
            .enumerate()
            .filter_map(|(index, block)| wanted(index).then_some(block))
            .flatten()
            .collect();
        self.print(&lines);
    }

    fn print(&self, lines: &[Line]) {
        let text: String = lines.iter().map(|line| line.text() + "\n").collect();
        let mut output = io::stdout().lock();
        if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
            // The reader of the pipe is gone.
            self.stop.set();
        }
    }
}

impl Picture {
    fn start(board: &Arc<Board>, stop: &Stop) -> io::Result<Self> {
        let screen = Screen::enter()?;
        let over = Arc::new(AtomicBool::new(false));
        let (board, stop, done) = (Arc::clone(board), stop.clone(), Arc::clone(&over));
        let thread = thread::spawn(move || {
            if draw(&screen, &board, &done, &stop).is_err() {
                stop.set();
            }
        });
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Draws until the demo is over or the end is requested.
fn draw(screen: &Screen, board: &Board, over: &AtomicBool, stop: &Stop) -> io::Result<()> {
    let (mut motion, glyphs) = (Motion::smooth(), glyphs());
    while !over.load(Ordering::Relaxed) && !stop.is_set() {
        let state = board.state().clone();
        motion.advance(&state);
        let size = screen::size()?;
        screen.draw(&view::frame(&state, &motion, board.elapsed(), glyphs, size))?;
        thread::sleep(FRAME);
    }
    Ok(())
}

fn glyphs() -> Glyphs {
    match screen::has_unicode() {
        true => Glyphs::UNICODE,
        false => Glyphs::ASCII,
    }
}
