//! The model of the tables with what happens to those who use it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    testing::simulation::{Happenings, World as _, lock},
};
use switchyard_kernel::xtables::{
    Table, ToolError,
    testing::{Ended, Machine, Tables},
};

/// The rules that another program has before the backend comes.
const THEIRS: &str = "*filter\n:THEIRS - [0:0]\n-A THEIRS -s 192.0.2.77/32 -j DROP\n-A INPUT -j THEIRS\n\
                      -A FORWARD -j THEIRS\nCOMMIT\n*nat\n:THEIRS - [0:0]\n-A THEIRS -j RETURN\n\
                      -A POSTROUTING -j THEIRS\nCOMMIT\n";

/// A fault that a restore meets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Fault {
    /// This line is refused, and its table with it.
    Refused(usize),
    /// Another program keeps the lock.
    Locked,
    /// The tables change, and the program is killed before it reports that.
    #[default]
    Lost,
    /// Another program changes the tables just before.
    Overtaken(usize),
    /// The process ends, once so many tables are committed.
    Crash(usize),
}

/// The tables of both families, and what happens to them.
#[derive(Default)]
pub(super) struct World {
    pub(super) tables: PerFamily<Tables>,
    /// The states of the tables since this was last taken, the first and each commit's.
    pub(super) history: Vec<PerFamily<Tables>>,
    generation: u32,
    pub(super) happened: Happenings<Fault>,
    /// The next tables cannot be read, or have rules that iptables cannot show.
    pub(super) unreadable: Option<bool>,
    /// The last input of a restore.
    pub(super) written: Option<String>,
    pub(super) reads: usize,
}

/// The programs of one process.
pub(super) struct Programs(pub(super) Arc<Mutex<World>>, pub(super) usize);

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self::default();
        for family in IpFamily::ALL {
            let tables = world.tables.get_mut(family);
            tables.restore(THEIRS, |_| {}).expect("they are the first");
        }
        world.take_history();
        world
    }

    fn restore(&mut self, family: IpFamily, input: &str) -> Result<(), usize> {
        let (mut states, tables) = (Vec::new(), self.tables.get_mut(family));
        let result = tables.restore(input, |tables| states.push(tables.clone()));
        for state in states {
            let mut all = self.history.last().expect("the first").clone();
            *all.get_mut(family) = state;
            self.history.push(all);
            self.generation += 1;
        }
        result
    }

    /// Changes a chain as another program may do: empties it, takes a rule, or adds one; or a jump
    /// to it goes.
    pub(super) fn damage(&mut self, number: usize) {
        let family = IpFamily::ALL[number % 2];
        let table = [Table::Filter, Table::Nat][number / 2 % 2];
        let tables = self.tables.get(family);
        let is_ours = |name: &str| name.starts_with("KUBE-") && name != "KUBE-FIREWALL";
        let leads_to_us = |rule: &String| rule.contains("-j KUBE-");
        let ours = tables.chains(table).filter(|(name, rules)| match number / 4 % 4 {
            0 => !is_ours(name) && rules.iter().any(leads_to_us),
            _ => is_ours(name) && !rules.is_empty(),
        });
        let ours: Vec<_> = ours.collect();
        let Some((name, rules)) = ours.get(number / 16 % ours.len().max(1)) else { return };
        let line = match number / 4 % 4 {
            0 => {
                let rule = rules.iter().find(|rule| leads_to_us(rule)).expect("one leads to us");
                format!("-D {name} {rule}")
            }
            1 => format!(":{name} - [0:0]"),
            2 => format!("-D {name} {}", rules[number % rules.len()]),
            _ => format!("-I {name} 1 -s 192.0.2.66/32 -j DROP"),
        };
        let input = format!("*{}\n{line}\nCOMMIT\n", table.name());
        self.restore(family, &input).expect("what is there can be changed");
        // What others do, packets may suffer from.
        self.take_history();
        self.happened.is_damaged = true;
    }

    fn run_restore(&mut self, family: IpFamily, input: &str) -> Result<Ended, ToolError> {
        let fault = self.happened.next_fault();
        let refused = |line| Ended { status: 1, text: format!("line {line} failed") };
        self.written = Some(input.to_owned());
        match fault {
            Some(Fault::Refused(number)) => {
                let number = number % input.lines().count();
                let before = tables_before(input, number);
                self.restore(family, before).expect("a part of what is not refused");
                return Ok(refused(number + 1));
            }
            Some(Fault::Locked) => {
                self.happened.seen.insert("another program kept the lock");
                let text = "Another app is currently holding the xtables lock".to_owned();
                return Ok(Ended { status: 4, text });
            }
            Some(Fault::Crash(tables)) => {
                self.happened.has_crashed = true;
                let ends = input.match_indices("COMMIT\n").map(|(at, end)| at + end.len());
                let ends: Vec<usize> = [0].into_iter().chain(ends).collect();
                let end = ends[tables % ends.len()];
                self.happened.seen.insert(match end {
                    0 => "a process ended before a commit",
                    end if end == input.len() => "a process ended after a commit",
                    _ => "a process ended between two tables",
                });
                let _ = self.restore(family, &input[..end]);
                return Err(gone());
            }
            Some(Fault::Overtaken(number)) => {
                self.damage(number);
                self.happened.is_unreported = true;
            }
            Some(Fault::Lost) | None => {}
        }
        if let Err(line) = self.restore(family, input) {
            let text = input.lines().nth(line - 1);
            assert!(
                self.happened.is_damaged || self.happened.has_met_faults,
                "{text:?} is refused:\n{input}"
            );
            self.happened.seen.insert("a sync of changes met a damage");
            return Ok(refused(line));
        }
        match fault {
            Some(Fault::Lost) => {
                self.happened.seen.insert("an answer was lost");
                Err(ToolError::TimedOut {
                    program: "iptables-restore".to_owned(),
                    arguments: String::new(),
                    limit: Duration::from_secs(120),
                    message: String::new(),
                })
            }
            _ => Ok(Ended::default()),
        }
    }

    fn run_save(&mut self, family: IpFamily) -> Ended {
        self.reads += 1;
        match self.unreadable.take() {
            Some(is_incompatible) => {
                self.happened.has_met_faults = true;
                if !is_incompatible {
                    return Ended { status: 1, text: "interrupted".to_owned() };
                }
                self.happened.seen.insert("a table could not be shown");
                let text = "# Table `nat' is incompatible, use 'nft' tool.\n".to_owned();
                Ended { status: 0, text }
            }
            None => Ended { status: 0, text: self.tables.get(family).save() },
        }
    }
}

/// The tables of an input that come before the table of this line, which is counted from zero.
fn tables_before(input: &str, line: usize) -> &str {
    let start: usize = input.lines().take(line).map(|line| line.len() + 1).sum();
    let end = input[..start].rfind("COMMIT\n").map_or(0, |at| at + "COMMIT\n".len());
    &input[..end]
}

fn gone() -> ToolError {
    let source = std::io::Error::other("the process has ended");
    ToolError::Run { program: "iptables".to_owned(), source }
}

impl Machine for Programs {
    fn run(
        &mut self,
        family: IpFamily,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<Ended, ToolError> {
        let mut world = lock(&self.0);
        if world.happened.process != self.1 || world.happened.has_crashed {
            return Err(gone());
        }
        match program {
            "-restore" => world.run_restore(family, input),
            "-save" => Ok(world.run_save(family)),
            _ => {
                let status = i32::from(world.tables.get_mut(family).command(arguments).is_none());
                world.take_history();
                Ok(Ended { status, text: String::new() })
            }
        }
    }

    fn generation(&mut self) -> u32 {
        lock(&self.0).generation
    }
}
