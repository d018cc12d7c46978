//! `switchyard top` of the running program, printed and on a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{ffi::OsStringExt, process::ExitStatusExt},
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

use rustix::{
    fs::{Mode, OFlags, open},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::Value;
use switchyard_core::testing::check_schema;

use crate::{
    manifests::{Manifests, NODE, service, web},
    namespace::{Namespace, until, until_ok},
};

/// The ports of `web`, and what takes their place with a node port.
const CLUSTER_IP: &str = "ports: [{port: 80, ";
const NODE_PORT: &str = "type: NodePort, ports: [{port: 80, nodePort: 30080, ";

/// A terminal, with all that was written to it.
struct Terminal {
    master: File,
    slave: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = std::ffi::OsString::from_vec(ptsname(&master, Vec::new()).unwrap().into_bytes());
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let terminal = Self { master: master.into(), slave: slave.into(), written: Arc::default() };
        terminal.resize(80, 24);
        let (mut reader, written) =
            (terminal.master.try_clone().unwrap(), Arc::clone(&terminal.written));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read) = reader.read(&mut bytes) {
                written.lock().unwrap().extend_from_slice(&bytes[..read]);
            }
        });
        terminal
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.slave, size).unwrap();
    }

    fn start(&self, mut command: Command) -> Child {
        let [input, output] = [&self.slave; 2].map(|slave| slave.try_clone().unwrap());
        command.stdin(input).stdout(output).spawn().unwrap()
    }

    /// Waits until the screen has the text.
    #[track_caller]
    fn shows(&self, wanted: &str) {
        until_ok(|| {
            let screen = screen(&self.text());
            if screen.contains(wanted) { Ok(()) } else { Err(screen) }
        });
    }

    fn press(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Whether the terminal has its own screen and cursor again.
    fn is_restored(&self, before: &Termios) -> bool {
        let modes = |it: &Termios| (it.local_modes, it.input_modes, it.output_modes);
        let last = |sequence| self.text().rfind(sequence);
        modes(&tcgetattr(&self.slave).unwrap()) == modes(before)
            && last("\x1b[?1049l") > last("\x1b[?1049h")
            && last("\x1b[?25h") > last("\x1b[?25l")
    }
}

/// The screen that a terminal has by what was written to it: places, clearing and characters.
fn screen(written: &str) -> String {
    let (mut lines, mut row, mut column) = (vec![Vec::new(); 24], 0, 0);
    for (number, part) in written.split("\x1b[").enumerate() {
        let end = part.find(|char: char| char.is_ascii_alphabetic()).filter(|_| number > 0);
        let (sequence, text) = part.split_at(end.map_or(0, |end| end + 1));
        match sequence.strip_suffix('H').map(|place| place.split_once(';')) {
            Some(Some((y, x))) => {
                (row, column) = (y.parse::<usize>().unwrap() - 1, x.parse::<usize>().unwrap() - 1);
            }
            _ if sequence.ends_with('J') => lines = vec![Vec::new(); 24],
            _ => {}
        }
        for char in text.chars() {
            let line = &mut lines[row];
            line.resize(line.len().max(column + 1), ' ');
            line[column] = char;
            column += 1;
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>() + "\n").collect()
}

#[test]
fn services_are_shown_with_their_traffic_and_the_terminal_is_restored() {
    let namespace = Namespace::new();
    let inside = &namespace.0;
    inside.ip("addr add 10.0.0.5/32 dev lo\nroute add 10.96.0.10/32 dev lo\n").unwrap();
    let web = web().replace(CLUSTER_IP, NODE_PORT);
    let none = service("none", "clusterIP: 10.96.0.11, ports: [{port: 80, protocol: TCP}]");
    let manifests = Manifests::new(&format!("{NODE}{web}{none}"));
    let flag = manifests.local_socket();
    let program = manifests.serve(&namespace, &[&flag]);

    let print = |arguments: &[&str]| {
        let (status, text) = namespace.answer(&[&["top", &flag], arguments].concat());
        assert_eq!(status, Some(0), "{text}");
        text
    };
    let flows = || {
        let top: Value = serde_json::from_str(&print(&["--once", "-o", "json"])).unwrap();
        check_schema("top", &top);
        let names = ["none", "web"].map(|name| format!("shop/{name}"));
        let services = top["services"].as_array().unwrap();
        assert!(services.iter().map(|one| one["service"].as_str().unwrap()).eq(names));
        assert!(services.iter().all(|one| one["newPerSecond"].is_f64()), "{top}");
        [0, 1].map(|place| services[place]["flows"].as_u64().unwrap())
    };
    assert_eq!(flows(), [0, 0]);
    let text = print(&["--once"]);
    assert!(text.contains("\nSERVICE     NEW/S  STUCK "), "{text}");
    assert!(text.contains("\nshop/none       0      0     0 %       0  SWY0101  "), "{text}");
    assert!(text.contains("  no ready endpoint\n"), "{text}");

    let terminal = Terminal::new();
    let before = tcgetattr(&terminal.slave).unwrap();
    let start = || {
        terminal.written.lock().unwrap().clear();
        let top = terminal.start(namespace.switchyard(&["top", &flag]));
        terminal.shows("shop/web");
        top
    };
    let restored = || until("the terminal is as before", || terminal.is_restored(&before));
    let mut top = start();
    assert_ne!(tcgetattr(&terminal.slave).unwrap().local_modes, before.local_modes);
    let connect = |to: &str| {
        let [client, to] = [to.to_owned(), to.to_owned()];
        inside
            .run(move || {
                let listener = TcpListener::bind("10.0.0.5:8080").unwrap();
                let client =
                    TcpStream::connect(client).unwrap_or_else(|error| panic!("{to}: {error}"));
                (client, listener.accept().unwrap())
            })
            .unwrap()
    };
    let _connections = [connect("10.96.0.10:80"), connect("192.0.2.1:30080")];
    // Two new ones, on the screen of those who look; the next look may be part of a second later.
    until("both connections are counted", || flows() == [0, 2]);
    terminal.press("/web\r\r");
    terminal.shows("shop/web is served on node-1 by its only endpoint.");
    terminal.press("q");
    terminal.shows("/web  q quit");
    terminal.resize(40, 10);
    let pid = Pid::from_child(&top);
    kill_process(pid, Signal::WINCH).unwrap();
    terminal.shows("SERVICE            NEW/S*  STUCK   SHARE\n");
    for is_signal in [false, true] {
        match is_signal {
            false => terminal.press("\x1a"),
            true => kill_process(pid, Signal::TSTP).unwrap(),
        }
        let (_, stopped) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(stopped.stopped());
        restored();
        terminal.written.lock().unwrap().clear();
        kill_process(pid, Signal::CONT).unwrap();
        terminal.shows("shop/web");
    }
    terminal.press("q");
    assert!(top.wait().unwrap().success());
    restored();
    terminal.resize(80, 24);

    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = start();
        kill_process(Pid::from_child(&top), signal).unwrap();
        let ended = top.wait().unwrap();
        assert_eq!(ExitStatusExt::signal(&ended), Some(signal.as_raw()));
        restored();
    }

    let mut top = start();
    program.terminate();
    terminal.shows("cannot reach a running proxy");
    terminal.press("\x03");
    assert!(top.wait().unwrap().success());
    for (argument, because) in [("--once", "cannot reach"), ("-v=0", "--once prints")] {
        let output = namespace.switchyard(&["top", argument, &flag]).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(because), "{output:?}");
    }
}

#[test]
fn connections_that_end_at_the_proxy_count_as_well() {
    let namespace = Namespace::new();
    namespace.0.ip("addr add 10.0.0.5/32 dev lo\nroute add 10.96.0.10/32 dev lo\n").unwrap();
    let manifests = Manifests::new(&(NODE.to_owned() + &web().replace(CLUSTER_IP, NODE_PORT)));
    let flag = manifests.local_socket();
    let _program = manifests.serve(&namespace, &["--proxy-mode=userspace", &flag]);
    let connect = || ["10.96.0.10:80", "192.0.2.1:30080"].map(TcpStream::connect);
    let (_listener, _clients) = namespace
        .0
        .run(move || (TcpListener::bind("10.0.0.5:8080").unwrap(), connect().map(Result::unwrap)))
        .unwrap();
    until_ok(|| {
        let (_, text) = namespace.answer(&["top", "-o", "json", &flag]);
        // A busy proxy may not answer in time.
        let Ok(top) = serde_json::from_str::<Value>(&text) else { return Err(text) };
        let (flows, proxied) = (&top["services"][0]["flows"], &top["proxied"]["active"]);
        if [flows, proxied].map(Value::as_u64) == [Some(2); 2] {
            Ok(())
        } else {
            Err(top.to_string())
        }
    });
}
