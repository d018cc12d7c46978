//! Any text is a configuration or an error; see `check_configuration`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = switchyard_agent::check_configuration(text);
    }
});
