//! The parser of a flag's value, by the rules of Go for the flag's [`Kind`].

use figment::value::{Dict, Value};
use switchyard_core::model::parse_ip;

use super::flag::Kind;
use crate::config::{duration::GoDuration, quantity, release, validate::NOT_NEGATIVE};

/// Parses `text` as a value of this kind. The error describes what is wrong with the text.
pub fn read(kind: Kind, text: &str) -> Result<Value, String> {
    let unless_empty = |check: &dyn Fn(&str) -> Result<(), String>| {
        if !text.is_empty() {
            check(text)?;
        }
        Ok(text.into())
    };
    match kind {
        Kind::Switch => switch(text).map(Value::from),
        Kind::Text => Ok(text.into()),
        Kind::Int32 => integer(text, i64::from(i32::MIN)..=i64::from(i32::MAX)),
        Kind::Uint32 => integer(text, 0..=i64::from(u32::MAX)),
        Kind::Float32 => text.parse::<f32>().map(Value::from).map_err(|_| not("a number")),
        Kind::Duration => match text.parse::<GoDuration>() {
            Ok(duration) => Ok(duration.to_string().into()),
            Err(error) => Err(error.to_string()),
        },
        Kind::Limit if text.starts_with('-') => Err(NOT_NEGATIVE.into()),
        Kind::Limit => read(Kind::Duration, text),
        Kind::List if text.is_empty() => Ok(Vec::<Value>::new().into()),
        Kind::List => Ok(text.split(',').map(unquoted).map(Value::from).collect::<Vec<_>>().into()),
        Kind::Gates => gates(text),
        Kind::Levels => levels(text),
        Kind::Ip => unless_empty(&|text| match parse_ip(text) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("failed to parse IP: {text:?}")),
        }),
        Kind::Listen => unless_empty(&listen),
        Kind::Quantity => match quantity::parse(text) {
            Some(_) => Ok(text.into()),
            None => Err(not("a quantity")),
        },
        Kind::Word(words) if words.contains(&text) => Ok(text.into()),
        Kind::Word(words) => Err(format!("must be one of {}", words.join(", "))),
        Kind::Version => match text {
            "raw" => Ok(text.into()),
            text if text.starts_with('v') => {
                release::same_release(text)?;
                Ok(text.into())
            }
            text => switch(text).map(|on| on.to_string().into()),
        },
    }
}

/// Joins the values of a flag that was given twice: lists and maps are concatenated, and of other
/// values the last one counts.
pub fn join(before: Value, after: Value) -> Value {
    match (before, after) {
        (Value::Array(tag, mut items), Value::Array(_, more)) => {
            items.extend(more);
            Value::Array(tag, items)
        }
        (Value::Dict(tag, mut items), Value::Dict(_, more)) => {
            items.extend(more);
            Value::Dict(tag, items)
        }
        (_, after) => after,
    }
}

/// Takes the quotes off an item of a list, which Go reads as CSV.
fn unquoted(item: &str) -> &str {
    item.strip_prefix('"').and_then(|item| item.strip_suffix('"')).unwrap_or(item)
}

fn not(what: &str) -> String {
    format!("not {what}")
}

/// Parses a boolean in Go's spellings.
fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".into()),
    }
}

fn integer(text: &str, range: std::ops::RangeInclusive<i64>) -> Result<Value, String> {
    match text.parse::<i64>() {
        Ok(number) if range.contains(&number) => Ok(number.into()),
        Ok(_) => Err("value out of range".into()),
        Err(_) => Err(not("a whole number")),
    }
}

/// Parses `A=true,B=false`. The last value of a name counts.
fn gates(text: &str) -> Result<Value, String> {
    let mut gates = Dict::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) =
            item.split_once('=').ok_or_else(|| format!("missing bool value for {item}"))?;
        let value = switch(value.trim())
            .map_err(|why| format!("invalid value of {}={}: {why}", name.trim(), value.trim()))?;
        gates.insert(name.trim().into(), value.into());
    }
    Ok(gates.into())
}

/// Parses `file=2,dir*=4` into entries of `logging.vmodule`.
fn levels(text: &str) -> Result<Value, String> {
    let mut entries: Vec<Value> = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (pattern, level) = match item.split_once('=') {
            Some((pattern, level)) if !pattern.is_empty() && !level.contains('=') => {
                (pattern, level)
            }
            _ => return Err(format!("{item:?} does not have the pattern=N format")),
        };
        let level: i32 = match level.parse() {
            Ok(level) if level >= 0 => level,
            _ => return Err(format!("parsing verbosity in {item:?}: not a number from 0")),
        };
        let entry = [("filePattern", pattern.into()), ("verbosity", level.into())];
        let entry: Dict =
            entry.into_iter().map(|(key, value): (&str, Value)| (key.into(), value)).collect();
        entries.push(entry.into());
    }
    Ok(entries.into())
}

/// Checks an address with or without a port. Port 0 is accepted here, and rejected by the checks of
/// the configuration.
fn listen(text: &str) -> Result<(), String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if parse_ip(bare).is_ok() {
        return Ok(());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| not("IP or IP:port"))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    parse_ip(host).map_err(|_| format!("{host:?} is not a valid IP address"))?;
    port.parse::<u16>().map_err(|_| format!("{port:?} is not a valid number"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: Kind, text: &str) -> String {
        read(kind, text).expect_err(text)
    }

    #[test]
    fn numbers_have_ranges() {
        assert_eq!(read(Kind::Int32, "-998").unwrap(), Value::from(-998i64));
        assert_eq!(refused(Kind::Int32, "2147483648"), "value out of range");
        assert_eq!(refused(Kind::Uint32, "-1"), "value out of range");
        assert_eq!(refused(Kind::Int32, "1.5"), "not a whole number");
        assert_eq!(read(Kind::Float32, "0.5").unwrap(), Value::from(0.5f32));
        assert_eq!(read(Kind::Limit, "90s").unwrap(), Value::from("1m30s"));
        assert_eq!(refused(Kind::Limit, "-5s"), "must be greater than or equal to 0");
    }

    #[test]
    fn gates_and_levels_are_lists_of_pairs() {
        let value = read(Kind::Gates, "A=true, B=F,,A=false").unwrap();
        assert_eq!(value.as_dict().unwrap().len(), 2);
        assert_eq!(value.as_dict().unwrap()["A"].to_bool(), Some(false));
        assert_eq!(refused(Kind::Gates, "A"), "missing bool value for A");
        assert_eq!(refused(Kind::Gates, "A=on"), "invalid value of A=on: neither true nor false");
        let value = read(Kind::Levels, "run=4,ku*=2").unwrap();
        let entries = value.as_array().unwrap();
        assert_eq!(entries[1].as_dict().unwrap()["filePattern"].as_str(), Some("ku*"));
        assert_eq!(entries[1].as_dict().unwrap()["verbosity"].to_i128(), Some(2));
        assert_eq!(refused(Kind::Levels, "run"), "\"run\" does not have the pattern=N format");
    }

    #[test]
    fn addresses_need_an_ip() {
        for good in ["", "0.0.0.0", "::", "[::]:1", "1.2.3.4:0", "[fd00::1]"] {
            read(Kind::Listen, good).unwrap();
        }
        assert_eq!(refused(Kind::Listen, ":10256"), "\"\" is not a valid IP address");
        assert_eq!(refused(Kind::Listen, "localhost:1"), "\"localhost\" is not a valid IP address");
        assert_eq!(refused(Kind::Ip, "eth0"), "failed to parse IP: \"eth0\"");
    }

    #[test]
    fn lists_grow_and_texts_are_replaced() {
        let list = |text| read(Kind::List, text).unwrap();
        assert_eq!(join(list("a,b"), list("c")), list("a,b,c"));
        assert_eq!(list("\"a\",b,\"c"), Value::from(vec!["a", "b", "\"c"]));
        assert_eq!(join("a".into(), "b".into()), Value::from("b"));
    }
}
