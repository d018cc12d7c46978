//! JSON Schema, as far as the schemas in `docs/` use it.

use std::fs;

use serde_json::{Value, json};

/// Checks a value by `docs/NAME.schema.json`. Properties that the schema does not have are errors.
#[track_caller]
pub fn check_schema(name: &str, value: &Value) {
    let schema = read(&format!("{name}.schema.json"));
    check(value, &schema, &schema, name);
}

#[track_caller]
fn read(file: &str) -> Value {
    let path = format!("{}/../docs/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let (file, pointer) = name.split_once('#').unwrap();
        let other = (!file.is_empty()).then(|| read(file));
        let root = other.as_ref().unwrap_or(root);
        let schema = root.pointer(pointer).unwrap_or_else(|| panic!("no {name}"));
        return check(value, schema, root, at);
    }
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
                let known = known.get(name).or_else(|| schema.get("additionalProperties"));
                let known = known.unwrap_or_else(|| panic!("{at}.{name} is not described"));
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
