//! The target that the variable `TARGET` names, for libFuzzer, which has the main function.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static READ: std::sync::LazyLock<fn(&[u8])> = std::sync::LazyLock::new(|| {
        let wanted = std::env::var("TARGET").unwrap_or_default();
        let target = switchyard_fuzz::TARGETS.iter().find(|(name, _)| *name == wanted);
        target.unwrap_or_else(|| panic!("TARGET={wanted} is none of the targets")).1
    });
    READ(bytes);
});
