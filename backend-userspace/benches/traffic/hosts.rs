//! The hosts and their processes: the node is the namespace of the calling thread; client and
//! endpoints have one each, and reach each other through the node.

use std::{
    env, fmt, fs,
    io::{self, BufRead, BufReader, Write},
    net::Ipv4Addr,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
};

use test_netns::run;

/// The roles of processes.
pub const CLIENT: &str = "as-client";
pub const ENDPOINTS: &str = "as-endpoints";
pub const PROXY: &str = "as-proxy";

/// The node's address for the endpoints.
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);

/// The number of addresses the client has, and the endpoints have.
pub const CLIENTS: u8 = 16;
pub const SERVERS: u8 = 4;

/// An address of the client, by a number below [`CLIENTS`].
pub fn client(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, 10 + (number % usize::from(CLIENTS)) as u8)
}

/// The address of an endpoint, by a number below [`SERVERS`].
pub fn server(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, 0, 10 + number)
}

/// The cluster IP of a Service.
pub fn service(number: usize) -> Ipv4Addr {
    let [high, low] = (number as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 96, high, low)
}

/// The ports of the endpoints and of Services: bytes without end; a byte for a byte, and the end;
/// what comes, back to where it came from.
pub const BULK: u16 = 5001;
pub const SHORT: u16 = 5002;
pub const ECHO: u16 = 5003;

/// Client and endpoints, connected to the node that this thread is.
pub struct Hosts {
    pub client: Process,
    pub endpoints: Process,
}

impl Hosts {
    pub fn start() -> Self {
        run("ip link set lo up");
        sysctl("net/ipv4/ip_forward", "1");
        local_ports();
        Self { client: attach(CLIENT, 1), endpoints: attach(ENDPOINTS, 2) }
    }
}

/// Starts a process in its own network.
fn attach(role: &str, network: u8) -> Process {
    let mut process = Process::start(&[role]);
    let pid = process.child.id();
    run(&format!("ip link add host{network} type veth peer name eth0 netns {pid}"));
    run(&format!("ip addr add 10.{network}.0.1/24 dev host{network}"));
    run(&format!("ip link set host{network} up"));
    let () = process.ask("network");
    process
}

/// Sets up the namespace of this process, whose node is at an address.
pub fn join(node: &str, own: impl IntoIterator<Item = Ipv4Addr>) {
    run("ip link set lo up");
    for address in own {
        run(&format!("ip addr add {address}/24 dev eth0"));
    }
    run("ip link set eth0 up");
    run(&format!("ip route add default via {node}"));
    local_ports();
}

/// Many connections a second need many local ports.
fn local_ports() {
    sysctl("net/ipv4/ip_local_port_range", "10000 65535");
    sysctl("net/ipv4/tcp_tw_reuse", "1");
}

fn sysctl(name: &str, value: &str) {
    fs::write(format!("/proc/sys/{name}"), value).expect("a parameter of the kernel");
}

/// A process with a role, which ends with its standard input, at the latest when this value is
/// dropped.
pub struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process in the namespace of this thread, and waits until the process is ready.
    pub fn start(role: &[&str]) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut process = Self { child, requests, answers };
        let () = process.answer();
        process
    }

    /// Sends a request, and waits for the answer.
    pub fn ask<T: Answer>(&mut self, request: impl fmt::Display) -> T {
        self.send(request);
        self.answer()
    }

    pub fn send(&mut self, request: impl fmt::Display) {
        writeln!(self.requests.as_ref().expect("it runs"), "{request}").expect("it listens");
    }

    pub fn answer<T: Answer>(&mut self) -> T {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("text");
        assert!(line.ends_with('\n'), "the process has ended");
        T::read(&mut line.split_whitespace())
    }

    /// The time that processors have run the process and those that it has started, in seconds.
    pub fn time(&self) -> f64 {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("the process runs");
        let all = children.split_whitespace().map(str::to_owned).chain([pid.to_string()]);
        let tasks = all.flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).expect("tasks"));
        tasks.map(|task| time(&task.expect("a task").path())).sum()
    }

    /// The memory that the process has, in bytes: its resident set.
    pub fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()).expect("a number");
        kilobytes.parse::<f64>().expect("a number") * 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

/// The time that processors have run a thread, in seconds, by its directory in `/proc`.
pub fn time(thread: &Path) -> f64 {
    let stat = fs::read_to_string(thread.join("schedstat")).unwrap_or_else(|_| "0".to_owned());
    word::<f64>(&mut stat.split_whitespace()) / 1e9
}

/// The answer of a process: a line of numbers.
pub trait Answer {
    fn read(words: &mut dyn Iterator<Item = &str>) -> Self;
}

impl Answer for () {
    fn read(_: &mut dyn Iterator<Item = &str>) -> Self {}
}

impl Answer for f64 {
    fn read(words: &mut dyn Iterator<Item = &str>) -> Self {
        word(words)
    }
}

impl<const N: usize> Answer for [f64; N] {
    fn read(words: &mut dyn Iterator<Item = &str>) -> Self {
        std::array::from_fn(|_| word(words))
    }
}

/// Reads a number, a name or an address.
pub fn word<T: FromStr<Err: fmt::Debug>>(words: &mut dyn Iterator<Item = &str>) -> T {
    words.next().expect("another word").parse().expect("a word of the right kind")
}

/// Answers the requests of the process that has started this one, each a line of words, until that
/// process ends.
pub fn serve(mut answer: impl FnMut(&str, &mut dyn Iterator<Item = &str>) -> Vec<f64>) {
    println!();
    for line in io::stdin().lock().lines() {
        let line = line.expect("text");
        let mut words = line.split_whitespace();
        let request = words.next().expect("a request");
        let numbers = answer(request, &mut words);
        let line: Vec<String> = numbers.iter().map(f64::to_string).collect();
        println!("{}", line.join(" "));
    }
}
