//! The corpus of the fuzz target `config`, as plain tests: any text is a configuration or an error,
//! and what is accepted comes back as the same when it is written and read.

use std::{fs, path::Path};

use crate::config::text;

#[test]
fn every_text_is_a_configuration_or_an_error() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/config");
    let (mut accepted, mut refused) = (0, 0);
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        match text::check(&text) {
            Ok(_) => accepted += 1,
            Err(_) => refused += 1,
        }
        // Half of a file is as likely as a whole one while it is written.
        for end in (0..text.len()).step_by(7).filter(|end| text.is_char_boundary(*end)) {
            let _ = text::check(&text[..end]);
        }
    }
    assert!(accepted >= 10, "only {accepted} texts of the corpus are configurations");
    assert!(refused >= 3, "only {refused} texts of the corpus are refused");
}
