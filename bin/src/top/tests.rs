use ratatui_core::{
    backend::TestBackend,
    buffer::Buffer,
    style::{Color, Modifier, Style},
    terminal::Terminal,
    text::Line,
};
use ratatui_termion::termion::input::TermRead;
use serde_json::json;
use switchyard_core::testing::check_schema;

use super::{
    draw::{self, plain},
    view::{Action, Cover, Sort, View},
    *,
};
use crate::explain::top::{Change, Latency, TableUse, TopEvent, TopNote, TopService};

fn service(name: &str, new: Option<f64>, flows: u64, stuck: u64) -> TopService {
    TopService {
        service: name.to_owned(),
        ports: vec!["80/tcp".to_owned(), "443/tcp".to_owned()],
        new_per_second: new,
        flows: Some(flows),
        share: Some(flows as f64 / 10.0),
        stuck: Some(stuck),
        endpoints: 3,
        all_endpoints: 3,
        note: (stuck > 0).then(|| TopNote {
            code: "SWY0120".to_owned(),
            text: format!("{stuck} connections are stuck"),
        }),
        last_change: None,
    }
}

fn top() -> Top {
    let mut cart = service("shop/cart", Some(2.25), 43, 11);
    cart.last_change = Some(Change { at: "2026-11-27T09:59:46Z".to_owned(), added: 1, removed: 2 });
    cart.all_endpoints = 5;
    let mut none = service("team/etl", None, 0, 0);
    (none.flows, none.share, none.stuck, none.endpoints) = (None, None, None, 0);
    none.note = Some(TopNote { code: "SWY0101".to_owned(), text: "no ready endpoint".to_owned() });
    let mut services = vec![service("kube-system/kube-dns", Some(1204.0), 610, 0), cart, none];
    services.extend((0..50).map(|n| service(&format!("many/s{n:02}"), Some(0.0), 1, 0)));
    Top {
        at: "2026-11-27T10:00:00Z".to_owned(),
        node: "node-1".to_owned(),
        mode: "nftables".to_owned(),
        version: "1.0".to_owned(),
        conntrack: Some(TableUse { entries: 1000, limit: Some(262_144), dropped_packets: 7 }),
        proxied: None,
        latency: Some(Latency { p50_milliseconds: 0.84, p99_milliseconds: 31.2, syncs: 7 }),
        problems: vec!["no news of Service objects for 200 s".to_owned(), "b".to_owned()],
        events: vec![
            TopEvent {
                at: "2026-11-27T09:58:00Z".to_owned(),
                text: "nft changed the rules; 3 objects were repaired".to_owned(),
            },
            TopEvent { at: "2026-11-25T10:00:00Z".to_owned(), text: "the proxy began".to_owned() },
        ],
        services,
    }
}

fn view() -> View {
    with(top())
}

fn with(top: Top) -> View {
    let mut view = View::default();
    view.set_top(top);
    view
}

/// The contents of a screen of this size.
fn draw(view: &View, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let wrong = Style::new().fg(Color::Red);
    terminal.draw(|frame| draw::draw(frame, view, wrong)).unwrap();
    terminal.backend().buffer().clone()
}

/// The lines of the same, without spaces at their ends.
fn texts(view: &View, size: (u16, u16)) -> Vec<String> {
    let buffer = draw(view, size);
    let line = |y| {
        let (mut text, mut x) = (String::new(), 0);
        while x < size.0 {
            let symbol = buffer[(x, y)].symbol();
            text.push_str(symbol);
            x += Line::raw(symbol).width().max(1) as u16;
        }
        text.trim_end().to_owned()
    };
    (0..size.1).map(line).collect()
}

/// The action that the last of these keys asks for.
fn type_in(view: &mut View, keys: &str) -> Action {
    let keys = keys.as_bytes().keys().map(Result::unwrap);
    keys.map(|key| view.key(key)).last().unwrap_or(Action::Draw)
}

#[test]
fn a_screen_of_the_usual_size_has_everything() {
    let texts = texts(&view(), (80, 24));
    assert_eq!(
        texts[..8],
        [
            "switchyard 1.0  node-1  nftables  53 Services",
            "conntrack 1000 / 262144  0.4 %  dropped 7  to kernel p50 0.8 p99 31 ms",
            "! no news of Service objects for 200 s (and 1 more)",
            "SERVICE                     NEW/S*  STUCK   SHARE      EP     NOTE        CHANGE",
            "kube-system/kube-dns          1204      0    61 %       3        -             -",
            "shop/cart                      2.2   11 !   4.3 %     3/5  SWY0120    14 s +1 -2",
            "many/s00                         0      0   0.1 %       3        -             -",
            "many/s01                         0      0   0.1 %       3        -             -",
        ]
    );
    assert_eq!(
        texts[20..],
        [
            "EVENTS",
            "  2 min ago  nft changed the rules; 3 objects were repaired",
            "    2 d ago  the proxy began",
            "q quit  jk choose  enter explain  s sort  / filter  p pause  ? help",
        ]
    );
    let buffer = draw(&view(), (80, 24));
    let (plain, wrong) = (Color::Reset, Color::Red);
    assert_eq!(
        [2, 3, 4, 5, 6].map(|y| (buffer[(79, y)].fg, buffer[(79, y)].modifier)),
        [
            (wrong, Modifier::empty()),
            (plain, Modifier::BOLD),
            (plain, Modifier::REVERSED),
            (wrong, Modifier::empty()),
            (plain, Modifier::empty()),
        ]
    );
}

#[test]
fn small_screens_have_the_first_columns_and_large_ones_long_names() {
    let mut top = top();
    assert_eq!(
        texts(&with(top.clone()), (40, 10))[3..5],
        ["SERVICE            NEW/S*  STUCK   SHARE", "kube-system/kube-    1204      0    61 %"]
    );
    let long = "n".repeat(40) + "/" + &"s".repeat(50);
    top.services.push(service(&long, Some(1e6), 1, 0));
    let mut view = with(top);
    let large = &texts(&view, (220, 50))[4];
    assert!(large.starts_with(&format!("{long}  ")), "{large:?}");
    for size in [(10, 3), (1, 1), (0, 0)] {
        for cover in [None, Some(Cover::Help)] {
            view.cover = cover;
            draw(&view, size);
        }
    }
}

#[test]
fn wide_characters_are_not_cut_in_two_and_control_characters_not_sent() {
    let services = vec![service("名前空間/サービス名", Some(1.0), 1, 0)];
    let mut view = with(Top { services, ..top() });
    view.error = Some("e\u{301}\x1b]0;title\x07\n\u{202e}x".to_owned());
    let lines = texts(&view, (40, 10));
    assert_eq!(lines[4], "名前空間/サービス     1.0      0   0.1 %");
    assert_eq!(lines[9], "e\u{301}]0;titlex");
}

#[test]
fn keys_choose_sort_filter_and_end() {
    let mut view = view();
    let explain = |name: &str| Action::Explain(name.to_owned());
    assert_eq!(type_in(&mut view, "\r"), explain("kube-system/kube-dns"));
    assert_eq!(type_in(&mut view, "j\r"), explain("shop/cart"));
    // The chosen one stays chosen, wherever the order puts it.
    assert_eq!(type_in(&mut view, "a\r"), explain("shop/cart"));
    assert_eq!(type_in(&mut view, "\x1b[A\r"), explain("many/s49"));
    assert_eq!(type_in(&mut view, "\x1b[5~\r"), explain("many/s39"));
    assert_eq!(type_in(&mut view, "\x1b[6~\x1b[B\r"), explain("shop/cart"));
    assert_eq!(type_in(&mut view, "G\r"), explain("team/etl"));
    assert_eq!(type_in(&mut view, "t\x1b[H\r"), explain("shop/cart"));
    assert_eq!(type_in(&mut view, "eg\r"), explain("team/etl"));
    assert_eq!(type_in(&mut view, "lg\r"), explain("shop/cart"));
    type_in(&mut view, "s");
    assert_eq!(view.sort(), Sort::Name);
    type_in(&mut view, "/dnx\x7fs");
    assert!(view.is_typing && view.services().len() == 1);
    assert_eq!(type_in(&mut view, "\r\r"), explain("kube-system/kube-dns"));
    type_in(&mut view, "\x1b");
    type_in(&mut view, "p?");
    assert!(view.services().len() == 53 && view.is_paused);
    assert_eq!(view.cover, Some(Cover::Help));
    // The first key only takes the help away.
    assert_eq!(type_in(&mut view, "q"), Action::Draw);
    let text = "1\n2\n3\n".to_owned();
    view.cover = Some(Cover::Explained { service: "a/b".to_owned(), text, first: 0 });
    type_in(&mut view, "jjjj");
    assert_eq!(texts(&view, (80, 24))[3..5], ["explain a/b", "3"]);
    type_in(&mut view, "\x1b");
    assert_eq!(view.cover, None);
    assert_eq!(type_in(&mut view, "q"), Action::Quit);
    assert_eq!(type_in(&mut view, "/\x1a"), Action::Suspend);
    assert_eq!(type_in(&mut view, "\x03"), Action::Quit);
}

#[test]
fn the_schema_describes_the_answer_and_the_table_has_all_of_it() {
    check_schema("top", &json!(top()));
    let table = plain(&top());
    assert_eq!(table.lines().filter(|line| line.starts_with("many/")).count(), 50);
    assert!(
        table.contains(
            "\nteam/etl                   -      -       -     0/3  SWY0101             -"
        ) && table.contains("  no ready endpoint\n"),
        "{table}"
    );
    assert!(
        table.contains("\n! b\n") && table.ends_with("2026-11-25T10:00:00Z  the proxy began\n")
    );
}

#[test]
fn wide_screens_have_ports_and_the_last_minute() {
    let mut view = View::default();
    for (second, rate) in
        [(0, None), (5, Some(8.0)), (21, Some(1.0)), (22, Some(3.0)), (58, Some(0.0))]
    {
        let at = format!("2026-11-27T10:00:{second:02}Z");
        let services =
            vec![service("shop/cart", rate, 1, 0), service("shop/api", rate.map(|_| 0.0), 0, 0)];
        view.set_top(Top { at, services, ..top() });
    }
    let shown = texts(&view, (120, 24));
    assert!(shown[3].ends_with(" CHANGE     FLOWS           PORTS  LAST MIN"), "{shown:#?}");
    assert!(
        shown[4].starts_with("shop/cart ") && shown[4].ends_with("  80/tcp +1    █ ▃  ▁"),
        "{shown:#?}"
    );
    assert!(
        shown[5].starts_with("shop/api ") && shown[5].ends_with("  80/tcp +1    ▁ ▁  ▁"),
        "{shown:#?}"
    );
    let services = vec![service("shop/cart", None, 1, 2)];
    let lines = texts(&with(Top { services, ..top() }), (164, 24));
    assert!(lines[4].ends_with(" 2 connections are stuck"), "{lines:#?}");
    // All of it is over, or the clock was set back.
    for at in ["2026-11-27T10:05:00Z", "2026-11-27T09:00:00Z"] {
        let services = vec![service("shop/cart", Some(7.0), 1, 0)];
        view.set_top(Top { at: at.to_owned(), services, ..top() });
        let lines = texts(&view, (120, 24));
        assert!(lines[4].ends_with("  80/tcp +1         █"), "{lines:#?}");
    }
}
