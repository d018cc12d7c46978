//! The reference of the flags, which is `docs/flags.md`.

use std::fmt::Write;

use super::{Flag, Kind, Sets, Status, parse::placeholder, table::FLAGS};

/// The text above the tables.
const HEAD: &str = include_str!("reference.md");

/// Returns the page as Markdown.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    let usual = |flag: &&Flag| matches!(flag.status, Status::Usual | Status::Deprecated(_));
    section(&mut page, "Flags of kube-proxy", FLAGS.iter().filter(usual));
    section(
        &mut page,
        "Flags of Switchyard alone",
        FLAGS.iter().filter(|flag| flag.status == Status::Ours),
    );
    page.push_str(
        "\n## Flags of old releases\n\n\
         Manifests still carry these flags. The program accepts them with a warning.\n\n\
         | Flags | Effect |\n|---|---|\n",
    );
    let mut gone: Vec<(&str, Vec<String>)> = Vec::new();
    for flag in FLAGS {
        if let Status::Gone(what) = flag.status {
            let name = format!("`--{}`", flag.name);
            match gone.iter_mut().find(|(effect, _)| *effect == what) {
                Some((_, names)) => names.push(name),
                None => gone.push((what, vec![name])),
            }
        }
    }
    for (what, names) in gone {
        line(&mut page, format_args!("| {} | {what} |", names.join(", ")));
    }
    page
}

fn section(page: &mut String, title: &str, flags: impl Iterator<Item = &'static Flag>) {
    line(page, format_args!("\n## {title}\n"));
    line(page, format_args!("| Flag and value | Default | Field | C | Purpose |"));
    line(page, format_args!("|---|---|---|---|---|"));
    for flag in flags {
        let letter = flag.short.map(|letter| format!("`-{letter}`, ")).unwrap_or_default();
        let default = match flag.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        line(
            page,
            format_args!(
                "| {letter}`--{}` {} | {default} | {} | {} | {}{} |",
                flag.name,
                values(flag.kind),
                field(flag),
                if counts_beside_file(flag) { "C" } else { "" },
                flag.help,
                note(flag.status),
            ),
        );
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{text}");
}

fn values(kind: Kind) -> String {
    match kind {
        Kind::Word(words) => {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
        }
        kind => format!("`{}`", placeholder(kind)),
    }
}

fn counts_beside_file(flag: &Flag) -> bool {
    flag.beside_file || flag.sets == Sets::Program
}

fn field(flag: &Flag) -> String {
    match flag.sets {
        Sets::Field(path) => format!("`{path}`"),
        Sets::Section(name) => format!("`{name}` of `iptables`, or of `nftables` in nftables mode"),
        Sets::SectionUnlessIpvs(name) => {
            format!(
                "`{name}` of `iptables`, or of `nftables` in nftables mode; nothing in ipvs mode"
            )
        }
        Sets::IpvsOnly(name) => format!("`ipvs.{name}`, in ipvs mode"),
        Sets::PortOf(path) => format!("the port in `{path}`"),
        Sets::Program | Sets::Nothing => String::new(),
    }
}

fn note(status: Status) -> String {
    match status {
        Status::Deprecated(advice) => format!(" (deprecated: {advice})"),
        _ => String::new(),
    }
}
