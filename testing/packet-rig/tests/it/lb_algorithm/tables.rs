//! The tables of nftables mode, as `nft` lists them: a listing can be loaded again.

use std::path::{Path, PathBuf};

use packet_rig::{NetNs, Rig, SharePlan, chain};

use super::{
    choices,
    cluster::{even, server, service, service_of, settle, slices, slices_of, start},
    target,
};

fn nft(node: &NetNs, program: &str, arguments: &[&str]) -> String {
    node.output(program, arguments, "").unwrap()
}

/// The fields of a Service for both families, with its number at the end of its addresses.
fn dual(number: u8) -> String {
    format!("clusterIPs: [10.96.0.{number}, \"fd00:10:96::{number}\"], ipFamilies: [IPv4, IPv6]")
}

/// The Service `wN` with these fields, an algorithm and weights of three endpoints.
fn weighted(number: u8, fields: &str, lb_algorithm: &str, weights: [u16; 3]) -> String {
    let weights: Vec<_> = weights.into_iter().enumerate().collect();
    let name = format!("w{number}");
    let ports = "{name: t, port: 80}, {name: u, port: 80, protocol: UDP}";
    let spec = format!("{fields}, clusterIP: 10.96.0.{number}, ports: [{ports}]");
    service_of(&name, Some(lb_algorithm), &spec) + &slices_of(&name, &weights)
}

/// The endpoints that clients meet: the endpoints of many by Maglev and by source hash; and turns,
/// shares and affinity, which are checked.
fn behaviour(rig: &mut Rig) -> Vec<Vec<String>> {
    let shares = |to: [&str; 2], count, shares: [u32; 3], turns| SharePlan {
        from: "client".to_owned(),
        sources: 0,
        to: to.map(target).to_vec(),
        count,
        shares: (0..3).map(server).zip(shares).collect(),
        turns,
    };
    let drawn = ["udp://10.96.0.33:80", "tcp://[fd00:10:96::33]:80"];
    let turns = ["udp://10.96.0.32:80", "tcp://[fd00:10:96::32]:80"];
    let plans = [shares(drawn, 800, [5, 2, 1], false), shares(turns, 20, [1, 1, 2], true)];
    rig.check_shares(&plans).unwrap();
    // Of each address, three ports in a row.
    let sticky = choices(rig, "tcp://10.96.0.34:80", 3);
    assert!(sticky.chunks(3).all(|of_client| of_client.iter().all(|one| *one == of_client[0])));
    assert!(sticky.iter().any(|one| *one != sticky[0]), "{sticky:?}");
    [
        ("udp://10.96.0.30:80", 30),
        ("tcp://[fd00:10:96::30]:80", 30),
        ("udp://10.96.0.31:80", 2),
        ("tcp://[fd00:10:96::31]:80", 2),
    ]
    .map(|(to, ports)| choices(rig, to, ports))
    .into_iter()
    .chain([sticky])
    .collect()
}

/// The tables as either nft prints them are loaded by either, and packets go where they went.
#[test]
fn listings_of_either_nft_are_loaded_by_either() {
    let _calm = crate::stay_calm();
    let newer = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR")));
    if !crate::backends().contains(&"nftables") {
        return test_netns::skipped("nftables is no selected backend");
    }
    // nft 1.0.6 does not load what it prints of affinity in IPv6 (docs/nftables.md).
    let sticky = "sessionAffinity: ClientIP, ipFamilies: [IPv4]";
    let manifests = [
        service(None) + &slices(&even([0])),
        weighted(30, &dual(30), "maglev", [7, 2, 1]),
        weighted(31, &dual(31), "source-hash", [3, 1, 2]),
        weighted(32, &dual(32), "round-robin", [1, 1, 2]),
        weighted(33, &dual(33), "random", [5, 2, 1]),
        weighted(34, sticky, "maglev", [1, 1, 1]),
    ];
    let mut rig = start("nftables", "listings", manifests.concat(), &[]);
    settle(&mut rig, 1);
    let before = behaviour(&mut rig);
    rig.proxy.stop();

    let programs: Vec<String> = [Some("nft".into()), newer]
        .into_iter()
        .flatten()
        .map(|path: PathBuf| path.to_string_lossy().into_owned())
        .collect();
    let node = rig.topology.node().namespace.clone();
    let list = |program: &String| {
        // nft 1.0.6 does not know all names of priorities that nft 1.1.3 prints, hence
        // --numeric-priority.
        let list = |family| nft(&node, program, &["-y", "list", "table", family, "kube-proxy"]);
        ["ip", "ip6"].map(list).concat()
    };
    let listings: Vec<String> = programs.iter().map(list).collect();
    for (printed_by, listing) in programs.iter().zip(&listings) {
        assert!(listing.contains("jhash ip6 saddr . tcp sport mod 1021 seed 0x53575944"));
        for loaded_by in &programs {
            // By the newer one: nft 1.0.6 crashes when it sees tables that nft 1.1.3 has loaded.
            for family in ["ip", "ip6"] {
                nft(
                    &node,
                    &programs[programs.len() - 1],
                    &["delete", "table", family, "kube-proxy"],
                );
            }
            node.output(loaded_by, &["-f", "-"], listing).unwrap_or_else(|error| {
                panic!("printed by {printed_by}, loaded by {loaded_by}: {}", chain(&error))
            });
            let after = behaviour(&mut rig);
            assert_eq!(after, before, "printed by {printed_by}, loaded by {loaded_by}");
        }
    }
}
