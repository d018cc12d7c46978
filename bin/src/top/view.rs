//! The state of the screen, and what keys do to it.

use std::cmp::Ordering;

use ratatui_termion::termion::event::Key;

use super::minute::Minute;
use crate::explain::top::{Top, TopService};

/// The rows that a page key moves by.
const PAGE: usize = 10;

/// The order of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    New,
    Share,
    Stuck,
    Endpoints,
    Change,
    Name,
}

impl Sort {
    /// All, in the order in which `s` changes them, with their own keys.
    pub const ALL: [(Self, char); 6] = [
        (Self::New, 'n'),
        (Self::Share, 'c'),
        (Self::Stuck, 't'),
        (Self::Endpoints, 'e'),
        (Self::Change, 'l'),
        (Self::Name, 'a'),
    ];

    fn next(self) -> Self {
        let place = Self::ALL.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()].0
    }

    /// Services with more come first, and such with few endpoints; what is not measured is last.
    fn compare(self, a: &TopService, b: &TopService) -> Ordering {
        let descending = |of: fn(&TopService) -> Option<f64>| {
            of(b).unwrap_or(-1.0).total_cmp(&of(a).unwrap_or(-1.0))
        };
        let flows = |one: &TopService| one.flows.map(|flows| flows as f64);
        let first = match self {
            Self::New => descending(|one| one.new_per_second),
            Self::Share => Ordering::Equal,
            Self::Stuck => descending(|one| one.stuck.map(|stuck| stuck as f64)),
            Self::Endpoints => a.endpoints.cmp(&b.endpoints),
            Self::Change => {
                let a = a.last_change.as_ref().map(|change| &change.at);
                b.last_change.as_ref().map(|change| &change.at).cmp(&a)
            }
            Self::Name => a.service.cmp(&b.service),
        };
        first.then_with(|| descending(flows)).then_with(|| a.service.cmp(&b.service))
    }
}

/// A cover over the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cover {
    Help,
    /// The answer about a Service, from this line on.
    Explained {
        service: String,
        text: String,
        first: usize,
    },
}

/// The consequence of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to draw.
    Draw,
    Quit,
    /// To ask about this Service.
    Explain(String),
    /// To give the terminal back until the program is continued.
    Suspend,
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The last answer.
    top: Option<Top>,
    /// The rates of the last answers.
    minute: Minute,
    /// The places of all Services in the answer, in order: a large answer is sorted once.
    order: Vec<usize>,
    /// The places of those that are shown, in order.
    shown: Vec<usize>,
    /// Why there is no newer one.
    pub error: Option<String>,
    sort: Sort,
    /// The part of names that are shown.
    filter: String,
    /// Whether the filter is being typed.
    pub is_typing: bool,
    /// Whether answers are awaited no more.
    pub is_paused: bool,
    pub cover: Option<Cover>,
    /// The name of the chosen Service, which may be gone; without one, the first is chosen.
    pub chosen: Option<String>,
}

impl View {
    /// The last answer.
    pub fn top(&self) -> Option<&Top> {
        self.top.as_ref()
    }

    /// The rates of the last minute.
    pub fn minute(&self) -> &Minute {
        &self.minute
    }

    pub fn sort(&self) -> Sort {
        self.sort
    }

    /// The part of names that are shown.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn set_top(&mut self, top: Top) {
        self.minute.add(&top);
        self.top = Some(top);
        self.set_sort(self.sort);
    }

    fn set_sort(&mut self, sort: Sort) {
        self.sort = sort;
        let Some(top) = &self.top else { return };
        let all = &top.services;
        self.order = (0..all.len()).collect();
        self.order.sort_unstable_by(|a, b| sort.compare(&all[*a], &all[*b]));
        self.choose_shown();
    }

    fn set_filter(&mut self, change: impl FnOnce(&mut String)) {
        change(&mut self.filter);
        self.choose_shown();
    }

    fn choose_shown(&mut self) {
        let Some(top) = &self.top else { return };
        let is_shown = |place: &&usize| top.services[**place].service.contains(&self.filter);
        self.shown = self.order.iter().filter(is_shown).copied().collect();
    }

    /// The Services that are shown, in order.
    pub fn services(&self) -> Vec<&TopService> {
        let Some(top) = &self.top else { return Vec::new() };
        self.shown.iter().map(|place| &top.services[*place]).collect()
    }

    /// The place of the chosen one among these.
    pub fn chosen(&self, services: &[&TopService]) -> usize {
        let chosen = self.chosen.as_ref();
        chosen.and_then(|name| services.iter().position(|one| one.service == *name)).unwrap_or(0)
    }

    /// Does what a key asks for.
    pub fn key(&mut self, key: Key) -> Action {
        // In raw mode, these are no signals.
        match key {
            Key::Ctrl('c') => return Action::Quit,
            Key::Ctrl('z') => return Action::Suspend,
            _ => {}
        }
        if self.is_typing {
            match key {
                Key::Char('\n') => self.is_typing = false,
                Key::Char(char) => self.set_filter(|filter| filter.push(char)),
                Key::Backspace | Key::Ctrl('h') => self.set_filter(|filter| {
                    filter.pop();
                }),
                Key::Esc => {
                    self.is_typing = false;
                    self.set_filter(String::clear);
                }
                _ => {}
            }
            return Action::Draw;
        }
        if let Some(cover) = &mut self.cover {
            let to = match cover {
                Cover::Explained { text, first, .. } => {
                    moved(*first, key, text.lines().count()).map(|to| *first = to)
                }
                Cover::Help => None,
            };
            if to.is_none() {
                self.cover = None;
            }
            return Action::Draw;
        }
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('s') => self.set_sort(self.sort.next()),
            Key::Char('p') => self.is_paused = !self.is_paused,
            Key::Char('?' | 'h') => self.cover = Some(Cover::Help),
            Key::Char('/') => {
                self.is_typing = true;
                self.set_filter(String::clear);
            }
            Key::Esc => self.set_filter(String::clear),
            Key::Char('\n') => {
                let services = self.services();
                if let Some(chosen) = services.get(self.chosen(&services)) {
                    return Action::Explain(chosen.service.clone());
                }
            }
            Key::Char(letter) if Sort::ALL.iter().any(|(_, own)| *own == letter) => {
                let mut all = Sort::ALL.into_iter();
                self.set_sort(all.find(|(_, own)| *own == letter).unwrap_or_default().0);
            }
            key => {
                let services = self.services();
                if let Some(place) = moved(self.chosen(&services), key, services.len()) {
                    self.chosen = services.get(place).map(|one| one.service.clone());
                }
            }
        }
        Action::Draw
    }
}

/// The place of this many to which a key leads from another place, if it leads anywhere.
fn moved(place: usize, key: Key, count: usize) -> Option<usize> {
    let place = match key {
        Key::Up | Key::Char('k') => place.saturating_sub(1),
        Key::Down | Key::Char('j') => place + 1,
        Key::PageUp => place.saturating_sub(PAGE),
        Key::PageDown => place + PAGE,
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => count,
        _ => return None,
    };
    Some(place.min(count.saturating_sub(1)))
}
