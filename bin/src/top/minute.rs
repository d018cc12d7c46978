//! The rates of the last minute, as the answers of that time had them.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;

use crate::explain::top::Top;

const PARTS: usize = 6;
/// The length of a part, in seconds.
const SECONDS: i64 = 10;
/// A column for each rate, from none to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// New connections a second, by Service, in parts of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Minute(VecDeque<Part>);

#[derive(Clone, Debug)]
struct Part {
    /// The number of the part since the epoch.
    number: i64,
    answers: u32,
    /// The sums of the rates of all answers that are not 0.
    rates: HashMap<String, f64>,
}

impl Minute {
    /// Adds an answer, unless it has no rates.
    pub fn add(&mut self, top: &Top) {
        let Ok(at) = top.at.parse::<Timestamp>() else { return };
        let rates = top.services.iter().filter_map(|one| Some((one, one.new_per_second?)));
        let mut rates = rates.peekable();
        if rates.peek().is_none() {
            return;
        }
        let number = at.as_second() / SECONDS;
        // A clock may be set back.
        self.0.retain(|part| (number - PARTS as i64 + 1..=number).contains(&part.number));
        if self.0.back().is_none_or(|last| last.number != number) {
            self.0.push_back(Part { number, answers: 0, rates: HashMap::new() });
        }
        let Some(part) = self.0.back_mut() else { return };
        part.answers += 1;
        for (one, rate) in rates.filter(|(_, rate)| *rate > 0.0) {
            *part.rates.entry(one.service.clone()).or_default() += rate;
        }
    }

    /// Returns a column for each part, the latest last, in relation to the highest; a space where
    /// nothing was measured.
    pub fn bars(&self, service: &str) -> String {
        let Some(last) = self.0.back() else { return "-".to_owned() };
        let rate = |back: usize| {
            let number = last.number - back as i64;
            let part = self.0.iter().find(|part| part.number == number)?;
            let sum = part.rates.get(service).copied().unwrap_or_default();
            Some(sum / f64::from(part.answers))
        };
        let rates: Vec<Option<f64>> = (0..PARTS).rev().map(rate).collect();
        let highest = rates.iter().flatten().copied().fold(0.0, f64::max);
        let bar = |rate: Option<f64>| match rate {
            None => ' ',
            Some(rate) if rate > 0.0 => {
                // From 1 to the last one, so that some is more than none.
                let last = (BARS.len() - 1) as f64;
                BARS[(last * rate / highest).ceil().clamp(1.0, last) as usize]
            }
            Some(_) => BARS[0],
        };
        rates.into_iter().map(bar).collect()
    }
}
