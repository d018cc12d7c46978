//! Explanations as text.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use super::{
    client::{Clients, Route, RouteEnd, Sees},
    explanation::{EndpointLine, Explanation, FrontendLine, KernelCheck},
    facts::Whereabouts,
    findings::reason,
    printable::Printable,
};
use crate::{
    model::PerFamily,
    state::{FrontendAddress, PoolKind},
};

/// The most source ranges that are shown.
const MOST_RANGES: usize = 3;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Printable(&self.sentence))?;
        match self.kernel {
            KernelCheck::NotAsked => {
                write!(f, "This is the model; the kernel's rules were not read.")?
            }
            KernelCheck::Same { .. } => write!(f, "The kernel's rules do the same.")?,
            KernelCheck::AsProgrammed => write!(f, "The kernel holds what was programmed.")?,
            KernelCheck::Altered { .. } => {
                write!(f, "This is the model; the kernel does not hold what was programmed.")?
            }
            KernelCheck::NotUnderstood { .. } => {
                write!(f, "This is the model; not all of the kernel's rules were understood")?;
                match &self.not_understood {
                    Some(first) => write!(f, ": {}.", Printable(first))?,
                    None => f.write_str(".")?,
                }
            }
            KernelCheck::Differs { .. } => {
                write!(f, "This is the model; the kernel's rules do otherwise.")?
            }
        }
        let (node, mode) = (Printable(&self.node), self.mode.as_deref().unwrap_or("no mode"));
        writeln!(f, " {node}, {}", Printable(mode))?;
        if !self.frontends.is_empty() {
            let header = ["FRONTEND", "PORT", "FROM", "TO", "POD SEES"].map(str::to_owned).to_vec();
            let lines = self.frontends.iter().flat_map(|line| frontend_rows(line, &self.node));
            table(f, std::iter::once(header).chain(lines).collect())?;
        }
        if let Some(check) = self.health_check {
            write!(f, "health check :{}  ", check.port)?;
            let PerFamily { v4, v6 } = check.local_endpoints;
            match (v4, v6) {
                (Some(v4), Some(v6)) if v4 != v6 => {
                    write!(f, "IPv4: ")?;
                    health_answer(f, v4)?;
                    write!(f, "; IPv6: ")?;
                    health_answer(f, v6)?;
                }
                _ => health_answer(f, v4.or(v6).unwrap_or_default())?,
            }
            writeln!(f)?;
        }
        if !self.endpoints.is_empty() {
            let header = [
                "ENDPOINT", "POD", "NODE", "ZONE", "SHARE", "LOCAL", "FLOWS", "STUCK", "STATE",
                "SLICE",
            ];
            let header = header.map(str::to_owned).to_vec();
            let lines = self.endpoints.iter().map(endpoint_row);
            table(f, std::iter::once(header).chain(lines).collect())?;
        }
        if self.unlisted_endpoints > 0 {
            let ask = "ask about one, as NAMESPACE/NAME:PORT";
            writeln!(f, "and {} more, of other ports; {ask}", self.unlisted_endpoints)?;
        }
        if let Some(why) = &self.flows_not_counted {
            writeln!(f, "flows were not counted: {}", Printable(why))?;
        }
        if self.leads_somewhere() {
            let seen = match self.other_tables.as_deref() {
                None => Some("not read, as only a running proxy with CAP_NET_ADMIN does"),
                Some([]) => Some("none is seen to drop these connections"),
                // The findings name them.
                Some(_) => None,
            };
            let undecided = ("not decided are conditions on", &self.undecided_chains);
            let unread = ("rules are not read of", &self.unread_tables);
            let unknown = [undecided, unread].into_iter().filter(|(_, all)| !all.is_empty());
            let unknown =
                unknown.map(|(what, all)| format!("{what} {}", Printable(&all.join(", "))));
            let all: Vec<_> = seen.map(str::to_owned).into_iter().chain(unknown).collect();
            if !all.is_empty() {
                writeln!(f, "\nother tables  {}", all.join("; "))?;
            }
        }
        if let Some(seconds) = self.service_seconds {
            writeln!(f, "\nthe Service itself was changed {} ago", age(seconds))?;
        }
        if let Some(change) = &self.last_change {
            write!(f, "\nlast change  {}", change.at)?;
            if let Some(latency) = change.latency_milliseconds {
                write!(f, ", in the kernel after {latency:.1} ms")?;
            }
            if let Some(since) = change.trigger_milliseconds {
                write!(f, ", {:.1} s after its pods changed", since / 1000.0)?;
            }
            for (sign, endpoints) in [('+', &change.added), ('-', &change.removed)] {
                endpoints.iter().try_for_each(|endpoint| write!(f, " {sign}{endpoint}"))?;
            }
            writeln!(f)?;
        }
        if !self.findings.is_empty() {
            writeln!(f)?;
        }
        for finding in &self.findings {
            let mark = if finding.is_problem { "!" } else { " " };
            writeln!(f, "{} {mark} {}", finding.code, Printable(&finding.because))?;
            writeln!(f, "          try: {}", Printable(&finding.remedy))?;
        }
        Ok(())
    }
}

/// Writes rows with aligned columns, after an empty line. Columns in which nothing is known are
/// left out.
fn table(f: &mut fmt::Formatter<'_>, mut rows: Vec<Vec<String>>) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    for column in (0..columns).rev() {
        if rows.iter().skip(1).all(|row| row[column] == "-") {
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
    for cell in rows.iter_mut().flatten() {
        *cell = Printable(cell).to_string();
    }
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    writeln!(f)?;
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Writes what load balancers are answered about this node.
fn health_answer(f: &mut fmt::Formatter<'_>, local: usize) -> fmt::Result {
    let status = if local > 0 { 200 } else { 503 };
    let plural = if local == 1 { "" } else { "s" };
    write!(f, "{status}, {local} local endpoint{plural}")
}

fn frontend_rows(line: &FrontendLine, node: &str) -> Vec<Vec<String>> {
    let at = match line.at {
        FrontendAddress::NodePort => node.to_owned(),
        other => other.ip().as_ref().map(IpAddr::to_string).unwrap_or_default(),
    };
    let port = format!("{}/{}", line.port, line.protocol.as_lower());
    let mut rows = Vec::new();
    if line.routes.is_empty() {
        rows.push([at, port, "-".to_owned(), "not programmed".to_owned(), "-".to_owned()].to_vec());
        return rows;
    }
    for route in &line.routes {
        let (at, port) = match rows.is_empty() {
            true => (at.clone(), port.clone()),
            false => (String::new(), String::new()),
        };
        let from = from(route.clients, line.allowed_sources.as_deref());
        rows.push(vec![at, port, from, to(route, line), sees(route).to_owned()]);
    }
    rows
}

fn from(clients: Clients, allowed: Option<&[IpNet]>) -> String {
    let clients = match clients {
        Clients::All => "everyone",
        Clients::LocalPods => "pods here",
        Clients::ExceptLocalPods => "all others",
        Clients::Node => "this node",
        Clients::Others => "all others",
    };
    let Some(allowed) = allowed else { return clients.to_owned() };
    let named: Vec<String> = allowed.iter().take(MOST_RANGES).map(ToString::to_string).collect();
    let more = if allowed.len() > MOST_RANGES { ", ..." } else { "" };
    format!("{clients} in {}{more}", named.join(", "))
}

fn to(route: &Route, line: &FrontendLine) -> String {
    let pool = match route.to {
        RouteEnd::Refused => return "refused".to_owned(),
        RouteEnd::Dropped => return "dropped".to_owned(),
        RouteEnd::Pool(pool) => pool,
    };
    let plural = if route.endpoints == 1 { "" } else { "s" };
    let mut text = match pool {
        PoolKind::Cluster => format!("{} endpoint{plural}", route.endpoints),
        PoolKind::Local => format!("{} endpoint{plural} here (Local)", route.endpoints),
    };
    if route.endpoints > 1 {
        text.push_str(&format!(", {}", line.lb_algorithm));
    }
    if let Some(seconds) = line.affinity_seconds {
        text.push_str(&format!(", affinity {seconds} s"));
    }
    text
}

fn sees(route: &Route) -> &'static str {
    match route.pod_sees {
        Some(Sees::Client) => "client",
        Some(Sees::Node) => "node",
        None => "-",
    }
}

fn endpoint_row(line: &EndpointLine) -> Vec<String> {
    let address = match line.address.port() {
        0 => line.address.ip().to_string(),
        _ => format!("{}/{}", line.address, line.protocol.as_lower()),
    };
    let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    let node = match (line.node, &line.node_name) {
        (Whereabouts::Here, _) => "here".to_owned(),
        (_, Some(name)) => name.clone(),
        (Whereabouts::Elsewhere, None) => "elsewhere".to_owned(),
        (Whereabouts::Unknown, None) => "-".to_owned(),
    };
    let percent = |share: Option<f64>| {
        let share = share.map(|share| format!("{:.0} %", share * 100.0));
        share.unwrap_or_else(|| "-".to_owned())
    };
    let mut state = match line.code {
        Some(code) => format!("{} ({code})", reason(line.state)),
        None => reason(line.state).to_owned(),
    };
    if let Some(seconds) = line.state_seconds {
        let since = if line.state.is_used() { "used" } else { "left out" };
        state.push_str(&format!(", {since} for {}", age(seconds)));
    }
    let slice = match (&line.slice, line.slice_seconds) {
        (Some(slice), Some(seconds)) => format!("{slice}, pods changed {} ago", age(seconds)),
        (Some(slice), None) => slice.to_string(),
        (None, _) => "-".to_owned(),
    };
    let (pod, zone) = (known(&line.pod), known(&line.zone));
    let [share, local] = [line.share, line.local_share].map(percent);
    let [flows, stuck] = [line.flows, line.stuck_flows]
        .map(|count| count.map_or_else(|| "-".to_owned(), |count| count.to_string()));
    vec![address, pod, node, zone, share, local, flows, stuck, state, slice]
}

/// Returns a time in its largest whole unit: `5 min`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}
