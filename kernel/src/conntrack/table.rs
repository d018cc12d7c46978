//! The kernel's table: asks for flows, and deletes the stale ones.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
    net::IpAddr,
    thread,
    time::Duration,
};

use ipnet::IpNet;
use switchyard_core::{model::Protocol, state::NodePortAddresses};

use crate::{
    conntrack::{
        Group,
        flow::{CT_DELETE, Flow, FlowQuery},
        job::{Jobs, Listener, Stale},
        queue::Queue,
        worker::Tally,
    },
    netlink::{Error, Pipeline, Socket, Writer},
    route::{addresses, local_networks},
};

/// The most ports that are requested one by one; for more, the whole protocol is requested. The
/// kernel walks its table for each request, which costs as much as copying some ten thousand flows.
const MAX_QUERIES: usize = 4;
/// The most passes over the table of one sweep, which ends with one that finds no stale flow.
const MAX_PASSES: usize = 3;
/// The time between two looks, much longer than a packet takes through the rules.
const PAUSE: Duration = Duration::from_millis(100);
/// Flows that are deleted at once.
const BATCH: usize = 256;

/// Sockets in the namespace of the table.
#[derive(Debug)]
pub(crate) struct Table {
    asking: Socket,
    deleting: Socket,
    route: Socket,
}

impl Table {
    /// Opens the table of the calling thread's network namespace.
    pub(crate) fn open() -> Result<Self, Error> {
        let route = Socket::open(libc::NETLINK_ROUTE)?;
        // Without, lists of routes are whole.
        let _ = route.check_strictly();
        Ok(Self {
            asking: Socket::open(libc::NETLINK_NETFILTER)?,
            deleting: Socket::open(libc::NETLINK_NETFILTER)?,
            route,
        })
    }

    /// Deletes the stale flows of all jobs of a group. Flows count as scanned once. Returns the
    /// listeners of the flows that the kernel does not delete for now, and of those that the last
    /// look deleted: something makes them anew, such as clients that are not forgotten yet.
    pub(crate) fn sweep(
        &mut self,
        group: Group,
        jobs: &Jobs,
        queue: &Queue,
        tally: &mut Tally,
    ) -> Result<HashSet<Listener>, Error> {
        repeat(jobs, tally, |is_last, found| self.look(group, jobs, (queue, is_last), found))
    }

    fn look(
        &mut self,
        group: Group,
        jobs: &Jobs,
        (queue, is_last): (&Queue, bool),
        tally: &mut Tally,
    ) -> Result<HashSet<Listener>, Error> {
        let mut kept = HashSet::new();
        let node = Node::list(&mut self.route, group, jobs, queue)?;
        let mut writer = Writer::new();
        for query in queries(group, jobs) {
            let mut stale = StaleFlows {
                group,
                jobs,
                queue,
                socket: &mut self.deleting,
                flows: Vec::with_capacity(BATCH),
                is_last,
                kept: &mut kept,
            };
            let sequence = self.asking.sequences(1);
            writer.clear();
            query.write(&mut writer, sequence);
            self.asking.request(writer.as_slice(), sequence, |message| {
                tally.scanned += 1;
                let Some(flow) = Flow::read(&message, group) else { return Ok(()) };
                match find(&flow, jobs, &node) {
                    Some(job) => stale.add(job, flow, tally),
                    None => Ok(()),
                }
            })?;
            stale.sweep(tally)?;
        }
        Ok(kept)
    }
}

/// Looks for the stale flows of jobs, and returns what the last look does, which is called the last
/// if the number of looks is the reason. After one that deleted some, there is another: a packet
/// that was on its way when the rules changed may add its flow after the look. For new listeners,
/// there is a second one in any case.
fn repeat<T>(
    jobs: &Jobs,
    tally: &mut Tally,
    mut look: impl FnMut(bool, &mut Tally) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut is_again = jobs.values().any(|stale| matches!(stale, Stale::New(_)));
    let mut pass = 0;
    loop {
        pass += 1;
        let mut found = Tally::default();
        let result = look(pass == MAX_PASSES, &mut found);
        tally.deleted += found.deleted;
        if pass == 1 {
            tally.scanned += found.scanned;
        }
        is_again |= found.deleted > 0;
        if result.is_err() || !mem::take(&mut is_again) || pass == MAX_PASSES {
            return result;
        }
        thread::sleep(PAUSE);
        tally.paused += PAUSE;
    }
}

/// The addresses of node ports.
#[derive(Debug, Default)]
struct Node {
    /// The node's addresses; empty if they do not matter.
    addresses: BTreeSet<IpAddr>,
    /// The networks whose addresses are local without being an interface's.
    networks: Vec<IpNet>,
    served: NodePortAddresses,
}

impl Node {
    fn list(route: &mut Socket, group: Group, jobs: &Jobs, queue: &Queue) -> Result<Self, Error> {
        if jobs.keys().all(|job| job.ip.is_some()) {
            return Ok(Self::default());
        }
        let served = queue.lock().node_ports.get(group.family).clone();
        let addresses = addresses(route, 0, |_, _| true)?;
        let mut networks = local_networks(route, group.family)?;
        networks.retain(|net| {
            net.prefix_len() < net.max_prefix_len() || !addresses.contains(&net.addr())
        });
        Ok(Self { addresses, networks, served })
    }

    /// Whether `ip` is an address of the node. All loopback addresses are, though an interface has
    /// one of them.
    fn is_address(&self, ip: IpAddr) -> bool {
        let is_routed = || self.networks.iter().any(|net| net.contains(&ip));
        self.addresses.contains(&ip) || ip.is_loopback() || is_routed()
    }

    fn is_served(&self, ip: IpAddr) -> bool {
        self.served.contains(ip)
    }
}

/// Returns the listener of the job by which a flow is stale.
fn find(flow: &Flow, jobs: &Jobs, node: &Node) -> Option<Listener> {
    let to = flow.original.destination;
    let exact = Listener::at(to);
    let job = if jobs.contains_key(&exact) {
        exact
    } else if node.is_address(to.ip())
        // On other addresses, the port may belong to another program.
        && (flow.is_redirected() || node.is_served(to.ip()))
    {
        Listener::node_port(to.port())
    } else {
        return None;
    };
    jobs.get(&job).is_some_and(|stale| stale.is_stale(flow)).then_some(job)
}

/// Returns the requests to the kernel whose answers include all flows of these jobs.
fn queries(group: Group, jobs: &Jobs) -> Vec<FlowQuery> {
    let all = FlowQuery { group, destination: None, port: None };
    // The listeners by port, with the address if there is only one.
    let mut ports: BTreeMap<u16, Option<IpAddr>> = BTreeMap::new();
    for job in jobs.keys() {
        ports.entry(job.port).and_modify(|ip| *ip = None).or_insert(job.ip);
        if ports.len() > MAX_QUERIES {
            return vec![all];
        }
    }
    // SCTP flows cannot be requested by port.
    if group.protocol == Protocol::Sctp && ports.len() > 1 {
        return vec![all];
    }
    let query = |(port, ip)| FlowQuery {
        port: Some(port),
        destination: match ip {
            Some(IpAddr::V4(ip)) => Some(ip),
            Some(IpAddr::V6(_)) | None => None,
        },
        ..all
    };
    ports.into_iter().map(query).collect()
}

/// Collects stale flows and deletes them in batches.
struct StaleFlows<'a> {
    group: Group,
    jobs: &'a Jobs,
    queue: &'a Queue,
    socket: &'a mut Socket,
    /// Flows, each with the listener of the job by which it is stale.
    flows: Vec<(Listener, Flow)>,
    is_last: bool,
    /// The listeners of flows that the kernel does not delete for now, and of those that come again
    /// until the last look.
    kept: &'a mut HashSet<Listener>,
}

impl StaleFlows<'_> {
    fn add(&mut self, job: Listener, flow: Flow, tally: &mut Tally) -> Result<(), Error> {
        self.flows.push((job, flow));
        if self.flows.len() < BATCH { Ok(()) } else { self.sweep(tally) }
    }

    fn sweep(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.keep_current()?;
        let mut requests = Pipeline::default();
        for (_, flow) in &self.flows {
            requests.request(CT_DELETE, 0, |w| flow.write(w, self.group));
            tracing::trace!(
                target: "switchyard_kernel::v6",
                ipFamily = self.group.family.as_str(),
                protocol = self.group.protocol.as_str(),
                source = %flow.original.source,
                destination = %flow.original.destination,
                answered_by = %flow.answered_by,
                "Deleting conntrack entry"
            );
        }
        let refused = self.socket.pipeline(&requests, None)?;
        tally.deleted += self.flows.len().saturating_sub(refused.len());
        if self.is_last {
            let comes_again = |job| self.jobs.get(job).is_some_and(Stale::may_come_again);
            let again = self.flows.iter().map(|(job, _)| job).filter(|job| comes_again(job));
            self.kept.extend(again);
        }
        for (number, error) in refused {
            match error.errno {
                // An entry that does not exist need not be deleted.
                libc::ENOENT => {}
                // A flowtable has the entry. Linux before 6.4 deletes it once it is out of there.
                libc::EBUSY => {
                    self.kept.extend(self.flows.get(number).map(|(job, _)| *job));
                }
                _ => return Err(Error::Kernel(error)),
            }
        }
        self.flows.clear();
        Ok(())
    }

    /// Drops flows that a later sync may have made valid: a newer job decides about them.
    fn keep_current(&mut self) -> Result<(), Error> {
        let mut waiting = self.queue.lock();
        if waiting.is_stopped() {
            return Err(Error::Interrupted);
        }
        let lane = waiting.lane(self.group);
        self.flows.retain(|(job, flow)| lane.is_current(*job, flow.original.destination));
        Ok(())
    }
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::in_namespace;

    use super::*;
    use crate::{
        conntrack::testing::{self, create, resolved, try_create},
        netlink::testing::{Traffic, replay},
    };

    const V4: Group = Group::ALL[0];
    const V4_SCTP: Group = Group::ALL[1];
    const V6: Group = Group::ALL[2];

    /// The queries for these listeners, as destination and port.
    fn asked(group: Group, listeners: &[&str]) -> Vec<String> {
        let job = |text: &&str| {
            let listener = match text.strip_prefix("node:") {
                Some(port) => Listener::node_port(port.parse().unwrap()),
                None => Listener::at(text.parse().unwrap()),
            };
            (listener, Stale::Unserved(resolved("a", &[])))
        };
        let jobs = listeners.iter().map(job).collect();
        let any = || "any".to_owned();
        let query = |query: FlowQuery| {
            assert_eq!(query.group, group);
            let FlowQuery { destination, port, .. } = query;
            let destination = destination.map_or_else(any, |ip| ip.to_string());
            format!("{destination} {}", port.map_or_else(any, |port| port.to_string()))
        };
        queries(group, &jobs).into_iter().map(query).collect()
    }

    #[test]
    fn few_listeners_are_asked_for_by_port_and_many_at_once() {
        let check = |group, listeners: &[&str], queries: &[&str]| {
            assert_eq!(asked(group, listeners), queries, "{listeners:?}");
        };
        check(V4, &["10.0.0.1:53"], &["10.0.0.1 53"]);
        check(V4, &["10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53"], &["any 53"]);
        check(V4, &["10.0.0.1:53", "10.0.0.2:54"], &["10.0.0.1 53", "10.0.0.2 54"]);
        check(V4, &["node:30053"], &["any 30053"]);
        check(V4, &["node:53", "10.0.0.1:53"], &["any 53"]);
        check(V4, &["node:1", "node:2", "node:3", "node:4", "node:5"], &["any any"]);
        // The kernel cannot compare IPv6 addresses, nor SCTP ports.
        check(V6, &["[fd00::1]:53"], &["any 53"]);
        check(V4_SCTP, &["10.0.0.1:53"], &["10.0.0.1 53"]);
        check(V4_SCTP, &["10.0.0.1:53", "10.0.0.1:54"], &["any any"]);
    }

    /// The table of this thread's namespace, a flow that is not in the table yet, and the job by
    /// which the flow is stale.
    fn stale_flow() -> (Table, Flow, Jobs) {
        let to = "10.0.0.10:53";
        let unserved = Stale::Unserved(resolved("a", &[]));
        let jobs = [(Listener::at(to.parse().unwrap()), unserved)].into();
        (Table::open().unwrap(), testing::flow("10.1.9.9:4000", to, "10.1.0.1:5353"), jobs)
    }

    #[test]
    fn a_flow_is_deleted_once_and_never_in_place_of_another() {
        in_namespace(|| {
            let (mut table, flow, jobs) = stale_flow();
            let (queue, mut tally) = (Queue::default(), Tally::default());
            let mut delete = |flows: &[Flow], tally: &mut Tally| {
                let socket = &mut table.deleting;
                let flows = flows.iter().map(|flow| (Listener::node_port(1), *flow)).collect();
                let kept = &mut HashSet::new();
                let is_last = false;
                let (group, jobs, queue) = (V4, &jobs, &queue);
                StaleFlows { group, jobs, queue, socket, flows, is_last, kept }.sweep(tally)
            };
            // Nothing is there.
            delete(&[flow], &mut tally).unwrap();
            assert_eq!(tally.deleted, 0);
            // Something is, with the same addresses, but it is not what was seen.
            create(&flow, V4);
            delete(&[flow, flow], &mut tally).unwrap();
            assert_eq!(tally.deleted, 0);
            table.sweep(V4, &jobs, &queue, &mut tally).unwrap();
            assert_eq!((tally.scanned, tally.deleted), (1, 1));
            table.sweep(V4, &jobs, &queue, &mut tally).unwrap();
            assert_eq!((tally.scanned, tally.deleted), (1, 1));
        });
    }

    #[test]
    fn a_flow_that_a_late_packet_adds_is_deleted_too() {
        in_namespace(|| {
            let (mut table, flow, jobs) = stale_flow();
            let (queue, mut tally) = (Queue::default(), Tally::default());
            create(&flow, V4);
            // As soon as the flow is gone.
            let late = thread::spawn(move || {
                while !try_create(&flow, V4) {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            table.sweep(V4, &jobs, &queue, &mut tally).unwrap();
            late.join().unwrap();
            assert_eq!((tally.scanned, tally.deleted), (1, 2));
            // Also if there is nothing at first, where the listener is new.
            let mut look_before_the_flow = |jobs: &Jobs| {
                let (mut tally, mut looks) = (Tally::default(), 0);
                let look = |is_last, found: &mut Tally| {
                    looks += 1;
                    let kept = table.look(V4, jobs, (&queue, is_last), found);
                    if looks == 1 {
                        create(&flow, V4);
                    }
                    kept
                };
                repeat(jobs, &mut tally, look).unwrap();
                assert_eq!(tally.paused, PAUSE * (looks - 1));
                (tally.deleted, looks)
            };
            let new = jobs.keys().map(|at| (*at, Stale::New(resolved("a", &[])))).collect();
            assert_eq!(look_before_the_flow(&new), (1, 3));
            assert_eq!(look_before_the_flow(&jobs), (0, 1));
        });
    }

    /// As before Linux 6.4.
    #[test]
    fn a_flow_in_a_flowtable_keeps_no_other() {
        in_namespace(|| {
            for (endpoints, comes_again) in [(&["10.1.0.3:5353"][..], true), (&[], false)] {
                let (mut table, flow, mut jobs) = stale_flow();
                let to = "10.0.0.11:53";
                let other = testing::flow("10.1.9.9:4000", to, "10.1.0.2:5353");
                // Without endpoints, another program makes it.
                let unserved = Stale::Unserved(resolved("b", endpoints));
                jobs.insert(Listener::at(other.original.destination), unserved);
                let mut answers = Writer::new();
                flow.create(&mut answers, V4, 0);
                other.create(&mut answers, V4, 0);
                answers.message(libc::NLMSG_DONE as u16, 0, 0, |w| w.raw(&[0; 4]));
                answers.message(libc::NLMSG_ERROR as u16, 0, 0, |w| {
                    w.raw(&(-libc::EBUSY).to_ne_bytes());
                    w.raw(&[0; 16]);
                });
                let (queue, mut tally) = (Queue::default(), Tally::default());
                // The same at each look: the second one is deleted, and has come again.
                let answers = answers.as_slice().repeat(MAX_PASSES);
                let traffic = Traffic { answers, ..Traffic::default() };
                let kept = replay(traffic, || table.sweep(V4, &jobs, &queue, &mut tally)).unwrap();
                let [flow, other] =
                    [flow, other].map(|flow| Listener::at(flow.original.destination));
                assert_eq!(kept, [flow].into_iter().chain(comes_again.then_some(other)).collect());
                assert_eq!((tally.scanned, tally.deleted), (2, MAX_PASSES));
            }
        });
    }
}
