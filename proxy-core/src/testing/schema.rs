//! JSON Schema, as far as the schemas in `docs/` use it.

use std::fs;

use serde_json::{Value, json};

/// Checks a value by `docs/NAME.schema.json`. Properties that the schema does not have are errors.
#[track_caller]
pub fn check_schema(name: &str, value: &Value) {
    let path = format!("{}/../docs/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    check(value, &schema, &schema, name);
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(name) => root.pointer(&name[1..]).unwrap_or_else(|| panic!("no {name}")),
        None => schema,
    };
    if *schema == json!(true) {
        return;
    }
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{at}: {value} is not one of {values:?}");
    }
    if let Some(choices) = schema["type"].as_array() {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(choices.contains(&json!(kind)), "{at} is {kind}: {value}");
    }
    match value {
        Value::Array(items) => {
            items.iter().for_each(|item| check(item, &schema["items"], root, &format!("{at}[]")));
        }
        Value::Object(fields) => {
            let known =
                schema["properties"].as_object().unwrap_or_else(|| panic!("{at}: {schema}"));
            for (name, field) in fields {
                let known =
                    known.get(name).unwrap_or_else(|| panic!("{at}.{name} is not described"));
                check(field, known, root, &format!("{at}.{name}"));
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{at} lacks {name}");
            }
            if let Some(most) = schema["maxProperties"].as_u64() {
                assert!(fields.len() as u64 <= most, "{at} has more than {most}: {value}");
            }
        }
        _ => {}
    }
}
