//! The changes to `web` that every act has, and what an act works with.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    board::{Board, Standing, State},
    cast::WEB,
    display::Display,
    error::{DemoError, Result},
    manifests::Manifests,
    stop::Stop,
    view::{ms, thousands},
};

/// The longest time for an effect that should take milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// The endpoint of `web` that is added.
pub const ADDED: usize = 3;
/// The weight of that endpoint; the others have 1.
const WEIGHT: u16 = 7;
/// The endpoint of `web` that is removed.
pub const REMOVED: usize = 0;

/// The measurements of these changes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// From the rename of the file to the first connection that reached the new endpoint.
    pub added: Duration,
    /// The share of the connections that reached the new endpoint while it had more weight than the
    /// others, in percent.
    pub weighed: f64,
    /// From the rename to the last connection that reached the removed endpoint. `None` if there was
    /// no such connection after the rename.
    pub removed: Option<Duration>,
    /// The number of connections of the Service after that, until the endpoint came back.
    pub since_removed: u64,
}

/// A removal of an endpoint: when the file was renamed, and how many connections its Service had
/// had by then.
#[derive(Clone, Copy)]
pub struct Removal {
    renamed: Instant,
    reached: u64,
}

/// The parts that a script works with.
pub struct Stage<'a> {
    /// The files.
    pub manifests: &'a Manifests,
    /// The record of all connections and messages.
    pub board: &'a Arc<Board>,
    /// The screen.
    pub display: &'a mut Display,
    /// The request to stop.
    pub stop: &'a Stop,
}

impl Stage<'_> {
    /// Adds the fourth endpoint of `web`.
    pub fn add_endpoint(&mut self, changes: &mut Changes) -> Result<()> {
        let (address, node) = self.web(ADDED);
        self.say(format!("web: scaling from 3 to 4 endpoints: {address} joins web.yaml"));
        changes.added = self.add(ADDED, &address, node)?;
        self.say(format!(
            "web: {} from the rename of the file to its first connection",
            ms(changes.added)
        ));
        self.hold(1000)?;
        self.board.set_standing(WEB, ADDED, Standing::Present);
        self.display.table_of(WEB);
        Ok(())
    }

    /// Gives that endpoint more weight for a while.
    pub fn weigh_endpoint(&mut self, changes: &mut Changes) -> Result<()> {
        let (address, _) = self.web(ADDED);
        self.say(format!(
            "web: {address} gets the weight {WEIGHT}, by an annotation of the EndpointSlice"
        ));
        self.manifests.weigh("web.yaml", &address, WEIGHT)?;
        // Connections that have begun come first.
        self.hold(200)?;
        let before = self.web_connections();
        self.hold(1200)?;
        let after = self.web_connections();
        let (weighed, all) = (after.0 - before.0, after.1 - before.1);
        changes.weighed = 100.0 * weighed as f64 / all.max(1) as f64;
        self.say(format!(
            "web: {:.1} % of {} connections, of {WEIGHT} in {} that it weighs",
            changes.weighed,
            thousands(all),
            u64::from(WEIGHT) + 3
        ));
        self.manifests.weigh_evenly("web.yaml")?;
        self.hold(300)?;
        self.display.table_of(WEB);
        Ok(())
    }

    /// The connections to the endpoint of `web` that was added, and all connections to `web`.
    fn web_connections(&self) -> (u64, u64) {
        let state = self.board.state();
        let web = &state.tallies[WEB];
        (web.endpoints[ADDED].count, web.reached())
    }

    /// Removes the first endpoint of `web`.
    pub fn remove_endpoint(&mut self, changes: &mut Changes) -> Result<Removal> {
        let (address, _) = self.web(REMOVED);
        self.say(format!("web: endpoint {address} goes away"));
        let reached = self.board.state().tallies[WEB].reached();
        let renamed = self.manifests.remove("web.yaml", &address)?;
        let removal = Removal { renamed, reached };
        self.board.set_standing(WEB, REMOVED, Standing::Removed);
        self.hold(400)?;
        self.check_removed(removal, changes);
        self.say(match changes.removed {
            Some(last) => format!(
                "web: {} from the rename to its last connection; none of {} since",
                ms(last),
                thousands(changes.since_removed)
            ),
            None => format!("web: no connection reaches {address} after the rename"),
        });
        self.hold(700)?;
        self.display.table_of(WEB);
        Ok(removal)
    }

    /// Notes when the last connection reached the removed endpoint, as far as known now.
    pub fn check_removed(&self, Removal { renamed, reached }: Removal, changes: &mut Changes) {
        let state = self.board.state();
        let web = &state.tallies[WEB];
        let gone = &web.endpoints[REMOVED];
        changes.removed = gone.last.filter(|last| *last > renamed).map(|last| last - renamed);
        changes.since_removed = web.reached() - gone.reached_by_then.max(reached);
    }

    /// Adds the removed endpoint again, and returns the time from the rename to its first connection.
    pub fn add_endpoint_again(&mut self) -> Result<Duration> {
        let (address, node) = self.web(REMOVED);
        self.display.restart_table();
        let took = self.add(REMOVED, &address, node)?;
        self.say(format!("web: {address} comes back: first connection after {}", ms(took)));
        self.hold(800)?;
        self.display.table();
        Ok(took)
    }

    /// Adds an endpoint of `web`, and returns the time from the rename to its first connection.
    fn add(&self, endpoint: usize, address: &str, node: u8) -> Result<Duration> {
        self.board.set_standing(WEB, endpoint, Standing::Added);
        let renamed = self.manifests.add("web.yaml", address, node)?;
        let first = |state: &State| state.tallies[WEB].endpoints[endpoint].first;
        let first = self.wait("a connection to the new endpoint", first)?;
        Ok(first.saturating_duration_since(renamed))
    }

    /// The address and node of an endpoint of `web`.
    pub fn web(&self, endpoint: usize) -> (String, u8) {
        let pod = self.board.state().tallies[WEB].endpoints[endpoint].pod;
        (pod.address(), pod.node)
    }

    /// Shows a message.
    pub fn say(&mut self, text: impl Into<String>) {
        self.display.say(text);
    }

    /// Lets traffic go on for some milliseconds.
    pub fn hold(&self, milliseconds: u64) -> Result<()> {
        self.stop.sleep(Duration::from_millis(milliseconds))
    }

    /// Waits a short time until `look` returns a value.
    pub fn wait<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> Result<T> {
        self.wait_for(SOON, what, look)
    }

    /// Waits until `look` returns a value.
    pub fn wait_for<T>(
        &self,
        longest: Duration,
        what: &str,
        look: impl Fn(&State) -> Option<T>,
    ) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(found) = look(&self.board.state()) {
                return Ok(found);
            }
            if started.elapsed() > longest {
                return Err(DemoError::NotSeen(what.to_owned(), longest.as_secs_f64()));
            }
            self.stop.sleep(Duration::from_millis(1))?;
        }
    }
}
