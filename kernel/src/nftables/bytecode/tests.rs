use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    decode::{Data, Draw, Expression, Verdict},
    read::{Base, Element, Set},
    *,
};

/// The registers of the tests, as words.
const SLOT: usize = 0;
const KEY: usize = 4;

/// A program of the chains, the first of which is the base chain, and maps of endpoints or chains
/// by slots.
fn program(
    chains: impl IntoIterator<Item = (&'static str, Vec<Vec<Expression>>)>,
    maps: impl IntoIterator<Item = (&'static str, Vec<Data>)>,
) -> Program {
    let base = Base { hook: Some(Hook::Prerouting), priority: -100, is_nat: true, drops: false };
    let chains = chains.into_iter().enumerate().map(|(number, (name, rules))| {
        let base = (number == 0).then(|| base.clone());
        (name.into(), Chain { base, rules })
    });
    let maps = maps.into_iter().map(|(name, slots)| {
        let elements = slots.into_iter().zip(0u32..).map(|(data, slot)| Element {
            key: slot.to_ne_bytes().into(),
            end: None,
            data: Some(data),
        });
        (name.into(), Set::new([4, 8], None, elements.collect()))
    });
    Program::new(Family::Ip, chains.collect(), maps.collect())
}

/// All packets of other hosts, and their fates in a time without end.
fn fates(program: &Program) -> Vec<(Packets, Fate)> {
    let packets = Packets::all(Family::Ip, false);
    program.fates(&packets, &Domain::new([]), &Budget::new(Duration::MAX))
}

/// The reasons why fates are unknown.
fn unknown(fates: &[(Packets, Fate)]) -> BTreeSet<&str> {
    let ends = fates.iter().flat_map(|(_, fate)| fate.ends.keys());
    ends.filter_map(|end| if let End::Unknown(why) = end { Some(&**why) } else { None }).collect()
}

fn draw(how: Draw, modulus: u32) -> Expression {
    Expression::Draw { to: SLOT, how, modulus, offset: 0 }
}

fn endpoint(last: u8) -> Data {
    Data::Bytes([10, 0, 0, last, 0, 80, 0, 0].into())
}

fn jump(chain: &str) -> Data {
    Data::Verdict(Verdict::Jump(chain.into()))
}

/// To the endpoint of a slot.
fn to_slot(map: &str) -> [Expression; 2] {
    let look_up = Expression::Lookup { set: map.into(), from: SLOT, to: Some(KEY), negated: false };
    [look_up, Expression::Translate { address: Some(KEY), port: Some(KEY + 1) }]
}

fn to_chain(map: &str) -> Expression {
    Expression::Lookup { set: map.into(), from: SLOT, to: None, negated: false }
}

#[test]
fn draws_of_too_many_numbers_are_not_evaluated() {
    let random = |modulus| {
        let [look_up, translate] = to_slot("slots");
        let rule = vec![draw(Draw::Random, modulus), look_up, translate];
        program([("base", vec![rule])], [("slots", vec![endpoint(1), endpoint(2)])])
    };
    assert!(unknown(&fates(&random(2))).is_empty());
    for modulus in [1 << 21, u32::MAX] {
        let why = format!("a number that is drawn of {modulus} is not evaluated");
        assert_eq!(unknown(&fates(&random(modulus))), BTreeSet::from([&*why]));
    }
}

#[test]
fn work_has_an_end() {
    let jump_to = |chain: &str| vec![Expression::Verdict(Verdict::Jump(chain.into()))];
    let goto = |chain: &str| vec![Expression::Verdict(Verdict::Goto(chain.into()))];
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];
    // Thirteen chains, each of which leads ten times to the next.
    let many = names.windows(2).map(|pair| (pair[0], vec![jump_to(pair[1]); 10]));
    // The same by draws.
    let draws = names
        .windows(2)
        .map(|pair| (pair[0], vec![vec![draw(Draw::Random, 1 << 10), to_chain(pair[1])]; 3]));
    let slots = names[1..].iter().map(|name| (*name, vec![jump(name); 1 << 10]));
    for (what, program) in [
        ("a circle", program([("a", vec![goto("b")]), ("b", vec![goto("a")])], [])),
        ("jumps", program(many, [])),
        ("draws", program(draws, slots)),
    ] {
        let packets = Packets::all(Family::Ip, false);
        let found = program.fates(&packets, &Domain::new([]), &Budget::of(None, 1 << 18));
        let why = BTreeSet::from(["it takes too many steps"]);
        assert_eq!(unknown(&found), why, "{what}");
    }
}

#[test]
fn no_time_is_no_answer() {
    let program = program([("base", vec![])], []);
    let packets = Packets::all(Family::Ip, false);
    let found = program.fates(&packets, &Domain::new([]), &Budget::new(Duration::ZERO));
    assert_eq!(unknown(&found), BTreeSet::from(["it takes too long"]));
}

#[test]
fn a_draw_in_a_draw_is_another_way() {
    let hash = Draw::Hash { from: KEY, length: 4, seed: 7 };
    let source = Expression::Payload { base: 1, offset: 12, length: 4, to: KEY };
    let [look_up, translate] = to_slot("slots");
    let chains = [
        ("base", vec![vec![draw(Draw::InTurn, 2), to_chain("chains")]]),
        ("one", vec![vec![source, draw(hash, 2), look_up, translate]]),
    ];
    let slots = vec![endpoint(1), endpoint(2)];
    let maps = [("chains", vec![jump("one"), Data::Verdict(Verdict::Drop)]), ("slots", slots)];
    let found = fates(&program(chains, maps));
    let [(_, fate)] = &found[..] else { panic!("{found:?}") };
    let shares: Vec<Share> = fate.ends.values().copied().collect();
    assert_eq!(shares, [(1, 2), (1, 4), (1, 4)]);
    assert!(fate.choices.len() == 2 && fate.choices.contains(&Choice::InTurn), "{fate:?}");
}

#[test]
fn a_hash_of_a_part_is_none_of_all() {
    let fates_by = |offset, loaded, length| {
        let hash = Draw::Hash { from: KEY, length, seed: 7 };
        let source = Expression::Payload { base: 1, offset, length: loaded, to: KEY };
        let [look_up, translate] = to_slot("slots");
        let rule = vec![source, draw(hash, 2), look_up, translate];
        let slots = vec![endpoint(1), endpoint(2)];
        fates(&program([("base", vec![rule])], [("slots", slots)]))
    };
    assert!(unknown(&fates_by(12, 4, 4)).is_empty());
    for (offset, loaded, length) in [(14, 2, 2), (14, 2, 4), (12, 4, 2)] {
        let found = fates_by(offset, loaded, length);
        assert_eq!(unknown(&found), BTreeSet::from(["what is hashed"]), "{offset} {length}");
    }
}

#[test]
fn a_register_that_is_overwritten_in_part_is_no_field() {
    let source = Expression::Payload { base: 1, offset: 8, length: 16, to: KEY };
    let part = Expression::Immediate { to: KEY + 1, bytes: [0; 4].into() };
    let compare =
        Expression::Compare { from: KEY, how: decode::Compare::Equal, with: [0; 16].into() };
    let rule = vec![source, part, compare, Expression::Verdict(Verdict::Drop)];
    let base = Base { hook: Some(Hook::Prerouting), priority: 0, is_nat: false, drops: false };
    let chain = Chain { base: Some(base), rules: vec![rule] };
    let program =
        Program::new(Family::Ip6, BTreeMap::from([("base".into(), chain)]), HashMap::new());
    let packets = Packets::all(Family::Ip6, false);
    let found = program.fates(&packets, &Domain::new([]), &Budget::new(Duration::MAX));
    assert_eq!(unknown(&found).len(), 1, "{found:?}");
}
