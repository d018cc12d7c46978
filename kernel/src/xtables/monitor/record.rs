//! The tables when all chains and jumps were last known to be there.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use switchyard_model::{IpFamily, PerFamily};

use super::{Fingerprint, fingerprint::Kind};
use crate::xtables::Table;

/// A full sync is due at most this often.
const COMPARE_PERIOD: Duration = Duration::from_secs(10);
/// Resyncs take at most this part of the time.
const COMPARE_SHARE: u32 = 50;

/// The record of a family's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing has been programmed, so that nothing can be missing.
    #[default]
    Nothing,
    /// Another program may have changed something.
    Unsure(Doubt),
    /// All chains and jumps were there at this fingerprint.
    Intact(Fingerprint),
}

/// A doubt whether all chains and jumps are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// The fingerprint after the last own change.
    at: Option<Fingerprint>,
    /// The time when the doubt arose. Own changes that no other program disturbs leave it.
    since: Instant,
    /// Whether a fingerprint shows that another program has changed something. None does while own
    /// changes of legacy tables go on.
    is_seen: bool,
}

impl Known {
    fn unsure(at: Option<Fingerprint>, is_seen: bool) -> Self {
        Self::Unsure(Doubt { at, since: Instant::now(), is_seen })
    }
}

/// A program's own change of a family's tables.
#[derive(Clone, Debug)]
pub struct OwnChange {
    /// The fingerprint before the change, and before everything was read, if it was.
    pub before: Option<Fingerprint>,
    /// The fingerprint after the change.
    pub after: Option<Fingerprint>,
    /// The tables that were written.
    pub tables: Vec<Table>,
    /// Whether the change waited until another program released the xtables lock.
    pub has_waited: bool,
}

impl OwnChange {
    /// Whether the fingerprints show no change of another program in between: a generation for each
    /// table that was written, at most, and the same legacy tables otherwise.
    fn is_alone(&self) -> bool {
        match (self.before.map(|print| print.0), self.after.map(|print| print.0)) {
            (Some(Kind::Generation(before)), Some(Kind::Generation(after))) => {
                after.wrapping_sub(before) as usize <= self.tables.len()
            }
            (Some(Kind::Legacy(before)), Some(Kind::Legacy(after))) => {
                let mut others = Table::ALL.into_iter().zip(before.into_iter().zip(after));
                others
                    .all(|(table, (before, after))| before == after || self.tables.contains(&table))
            }
            _ => false,
        }
    }

    /// Whether another program may have changed the tables that were written, unseen: legacy ones,
    /// when it had the lock.
    fn is_blind(&self, others_may_lock: bool) -> bool {
        let is_legacy = matches!(self.after, Some(Fingerprint(Kind::Legacy(_))));
        is_legacy && !self.tables.is_empty() && (others_may_lock || self.has_waited)
    }
}

/// A record of a program's own changes, by which its [`TableMonitor`](super::TableMonitor) knows
/// them from other programs'. The program that makes the changes and the monitor share it.
#[derive(Debug, Default)]
pub struct TableRecord(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: PerFamily<Known>,
    /// The time when everything was last compared, and how long that took.
    compared: Option<(Instant, Duration)>,
    /// Whether another program has changed something since, and left all chains and jumps.
    altered: bool,
}

impl State {
    /// A change of one family's tables moved the fingerprint; the other family's tables are as they
    /// were.
    fn carry(&mut self, change: &OwnChange) {
        let Some((before, after)) = change.before.zip(change.after) else { return };
        if !before.is_common() || !change.is_alone() {
            return;
        }
        for family in IpFamily::ALL {
            match self.known.get_mut(family) {
                Known::Intact(at) if *at == before => *at = after,
                Known::Unsure(Doubt { at: Some(at), .. }) if *at == before => *at = after,
                _ => {}
            }
        }
    }
}

impl TableRecord {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a family's tables were compared with what they should hold, and changed
    /// accordingly: everything is there, unless another program has changed something since they
    /// were read.
    pub fn set_intact(&self, family: IpFamily, change: &OwnChange) {
        let mut state = self.lock();
        state.carry(change);
        let is_alone = change.is_alone();
        *state.known.get_mut(family) = match change.after {
            // The lock is free between two tables.
            Some(after) if is_alone && !change.is_blind(true) => Known::Intact(after),
            at => Known::unsure(at, !is_alone),
        };
    }

    /// Records that a family's tables were changed without looking at the rest of them: everything
    /// is there if it was before.
    pub fn set_changed(&self, family: IpFamily, change: &OwnChange) {
        let mut state = self.lock();
        let known = *state.known.get(family);
        state.carry(change);
        let goes_on = |at| at == change.before && change.is_alone();
        *state.known.get_mut(family) = match (known, change.after) {
            // The monitor may have looked already.
            (Known::Intact(at), Some(after)) if at == after || goes_on(Some(at)) => {
                match change.is_blind(false) {
                    true => Known::unsure(Some(after), false),
                    false => Known::Intact(after),
                }
            }
            (Known::Unsure(doubt), at) if goes_on(doubt.at) => match change.is_blind(false) {
                true => Known::unsure(at, doubt.is_seen),
                false => Known::Unsure(Doubt { at, ..doubt }),
            },
            (_, at) => Known::unsure(at, true),
        };
    }

    /// Records that everything in all families was compared, beginning at `start`.
    pub fn set_resynced(&self, start: Instant) {
        let mut state = self.lock();
        state.compared = Some((Instant::now(), start.elapsed()));
        state.altered = false;
    }

    /// Forgets everything, as nothing is programmed any more.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }

    pub(super) fn get(&self, family: IpFamily) -> Known {
        *self.lock().known.get(family)
    }

    /// Records that all chains and jumps are there, unless another program may have changed the
    /// family since it was `known`, or there is no fingerprint: the next look decides then. The
    /// rules in the chains may have changed.
    pub(super) fn confirm(&self, family: IpFamily, known: Known, now: Option<Fingerprint>) {
        let mut state = self.lock();
        let Some(now) = now else { return };
        let (print, is_altered) = match (known, *state.known.get(family)) {
            // Own changes may have gone on during the look.
            (Known::Unsure(then), Known::Unsure(Doubt { at: Some(at), since, is_seen }))
                if then.since == since && (now == at || Some(now) == then.at) =>
            {
                (at, is_seen)
            }
            (known, current) if known == current => (now, true),
            _ => return,
        };
        *state.known.get_mut(family) = Known::Intact(print);
        state.altered |= is_altered;
    }

    /// The time when everything should be compared, because another program has changed something;
    /// `None` if none has.
    pub(super) fn resync_due(&self) -> Option<Instant> {
        let state = self.lock();
        let pause = |took: Duration| COMPARE_PERIOD.max(took.saturating_mul(COMPARE_SHARE));
        state.altered.then(|| match state.compared {
            Some((at, took)) => at.checked_add(pause(took)).unwrap_or(at),
            None => Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fingerprint::Kind, *};

    const V4: IpFamily = IpFamily::V4;
    const V6: IpFamily = IpFamily::V6;

    /// An own change of the table nat.
    fn change(before: Option<Fingerprint>, after: Option<Fingerprint>) -> OwnChange {
        OwnChange { before, after, tables: vec![Table::Nat], has_waited: false }
    }

    /// Whether a fingerprint shows the reason of the doubt about IPv4, if there is a doubt.
    fn doubt(record: &TableRecord) -> Option<bool> {
        match record.get(V4) {
            Known::Unsure(doubt) => Some(doubt.is_seen),
            _ => None,
        }
    }

    #[test]
    fn own_changes_of_one_family_are_none_of_the_other() {
        let [one, two, three, four] = [1, 2, 3, 4].map(|i| Some(Fingerprint(Kind::Generation(i))));
        let record = TableRecord::default();
        record.set_intact(V4, &change(one, two));
        assert_eq!(record.get(V6), Known::Nothing);
        record.set_intact(V6, &change(two, three));
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        record.set_changed(V4, &change(three, four));
        assert_eq!(record.get(V6), Known::Intact(four.unwrap()));

        // Legacy tables of the families change independently.
        let [one, two] = [1, 2].map(|i| Some(Fingerprint(Kind::Legacy([i; 3]))));
        let unchanged = OwnChange { tables: Vec::new(), ..change(one, one) };
        record.set_intact(V4, &unchanged);
        record.set_intact(V6, &OwnChange { tables: Table::ALL.into(), ..change(one, two) });
        assert_eq!(record.get(V4), Known::Intact(one.unwrap()));
    }

    #[test]
    fn changes_of_others_are_not_taken_for_own() {
        let [one, two, three] = [1, 2, 3].map(|i| Some(Fingerprint(Kind::Generation(i))));
        let record = TableRecord::default();
        record.set_intact(V4, &change(one, one));
        // The tables differ already before the change.
        record.set_changed(V4, &change(two, three));
        assert_eq!(doubt(&record), Some(true));
        assert_eq!(record.resync_due(), None);
        // A look from before the change.
        record.confirm(V4, Known::Intact(one.unwrap()), three);
        assert_eq!(doubt(&record), Some(true));
        record.confirm(V4, record.get(V4), three);
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        assert!(record.resync_due().is_some());
        let start = Instant::now();
        record.set_resynced(start);
        assert_eq!(record.resync_due(), None);
        record.confirm(V4, Known::Intact(three.unwrap()), one);
        assert!(record.resync_due().unwrap() >= start + COMPARE_PERIOD);
    }

    /// The lock of legacy tables is free between those of a comparison, and another program may
    /// have had it before a change that waited for it.
    #[test]
    fn legacy_tables_are_looked_at_where_others_may_have_changed_them() {
        let prints = [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 1, 4]];
        let [one, two, three, four] = prints.map(|print| Some(Fingerprint(Kind::Legacy(print))));
        let record = TableRecord::default();
        record.set_intact(V4, &change(one, two));
        assert_eq!(doubt(&record), Some(false));
        record.confirm(V4, record.get(V4), two);
        assert_eq!((record.get(V4), record.resync_due()), (Known::Intact(two.unwrap()), None));
        record.set_changed(V4, &change(two, three));
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        record.set_changed(V4, &OwnChange { has_waited: true, ..change(three, four) });
        assert_eq!(doubt(&record), Some(false));
    }

    /// nf_tables has one generation for both families.
    #[test]
    fn own_changes_of_the_other_family_leave_a_look_valid() {
        let prints = [1, 2, 4, 5].map(|i| Some(Fingerprint(Kind::Generation(i))));
        let [one, two, four, five] = prints;
        let record = TableRecord::default();
        record.set_intact(V4, &change(one, two));
        // Another program changes something.
        record.set_changed(V4, &change(one, four));
        let known = record.get(V4);
        record.set_intact(V6, &change(four, five));
        record.confirm(V4, known, four);
        assert_eq!(record.get(V4), Known::Intact(five.unwrap()));
    }

    /// Another program can change more between an own change and the look than the look shows.
    #[test]
    fn a_doubt_does_not_hide_what_fingerprints_show() {
        let prints = [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 4]];
        let [one, two, three, other] = prints.map(|print| Some(Fingerprint(Kind::Legacy(print))));
        let record = TableRecord::default();
        record.set_intact(V4, &change(one, two));
        record.confirm(V4, record.get(V4), three);
        assert_eq!(record.get(V4), Known::Intact(three.unwrap()));
        assert!(record.resync_due().is_some());
        for (before, after) in [(three, one), (two, other)] {
            record.set_intact(V4, &change(one, two));
            record.set_changed(V4, &change(before, after));
            assert_eq!(doubt(&record), Some(true), "{before:?} {after:?}");
        }
    }

    /// Looks at large tables take longer than it takes until the next sync.
    #[test]
    fn own_changes_during_a_look_need_no_other_look() {
        let [one, two, three] = [1, 2, 3].map(|i| Some(Fingerprint(Kind::Legacy([1, 1, i]))));
        for has_waited in [false, true] {
            let record = TableRecord::default();
            record.set_intact(V4, &change(one, two));
            let known = record.get(V4);
            record.set_changed(V4, &OwnChange { has_waited, ..change(two, three) });
            record.confirm(V4, known, two);
            assert_eq!(record.get(V4) == Known::Intact(three.unwrap()), !has_waited);
            assert_eq!(record.resync_due(), None);
        }
    }
}
