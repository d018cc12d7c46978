//! The scripts that make and check images, with the program as it is built for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// What it printed, if it succeeded.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn build(output: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(script("build-image.sh"));
    succeed(command.arg("-o").arg(output).args(arguments).env("LEVEL", "1"))
}

fn check(image: &Path, limit: u64) -> Output {
    let mut command = Command::new(script("test-image.sh"));
    command.arg(image).env("LIMIT", limit.to_string()).output().unwrap()
}

/// Copies the libraries that a program is linked with to where a root file system has them: the
/// image's own program is static.
fn put_libraries(program: &Path, root: &Path) {
    fs::create_dir_all(root.join("usr")).unwrap();
    for directory in ["lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{directory}"), root.join(directory)).unwrap();
    }
    for line in succeed(Command::new("ldd").arg(program)).lines() {
        // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, or the loader's path alone.
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        let place = match path.strip_prefix("/usr") {
            Some(_) => root.join(&path[1..]),
            None => root.join("usr").join(&path[1..]),
        };
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(path, place).unwrap();
    }
}

#[test]
fn an_image_proxies_in_every_mode() {
    let directory = TempDir::new().unwrap();
    let (program, libraries) = (directory.path().join("program"), directory.path().join("root"));
    let built = env!("CARGO_BIN_EXE_switchyard");
    succeed(Command::new("strip").arg("-o").arg(&program).arg(built));
    put_libraries(&program, &libraries);
    let image = directory.path().join("image.tar");
    let (program, libraries) = (program.to_str().unwrap(), libraries.to_str().unwrap());
    build(&image, &["-v", "iptables", "-b", program, "-f", libraries]);

    let checked = check(&image, u64::MAX >> 1);
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{checked:?}");
    for mode in ["nftables, as user 65532", "iptables-nft, as user 0", "iptables-legacy, as user 0"]
    {
        assert!(said.contains(&format!("{mode}: programmed, and cleaned up")), "{said}");
    }
}

#[test]
fn the_same_input_makes_the_same_image() {
    let directory = TempDir::new().unwrap();
    let make = |name: &str| {
        let image = directory.path().join(name);
        build(&image, &["-v", "iptables", "-b", "/bin/true", "-t", "somewhere/proxy:1"]);
        fs::read(image).unwrap()
    };
    assert!(make("first.tar") == make("second.tar"), "the images differ");
}

#[test]
fn what_is_wrong_with_an_image_is_said() {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("image.tar");
    build(&image, &["-b", "/bin/true"]);
    let refused = |image: &Path, limit: u64| {
        let checked = check(image, limit);
        assert!(!checked.status.success());
        String::from_utf8(checked.stderr).unwrap()
    };
    let size = fs::metadata("/bin/true").unwrap().len();
    let said = refused(&image, size - 1);
    let expected = format!("the binary has {size} bytes, more than {}", size - 1);
    assert!(said.contains(&expected), "{said}");

    // A byte of the layer, which is the only thing that is compressed.
    let mut bytes = fs::read(&image).unwrap();
    let layer = bytes.windows(2).position(|pair| pair == [0x1f, 0x8b]).unwrap();
    bytes[layer + 100] ^= 1;
    fs::write(&image, bytes).unwrap();
    assert!(refused(&image, size).contains("has another digest"));
}
