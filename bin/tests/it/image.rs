//! The scripts that make and check images. `make static` tries an image with the program in every
//! mode.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use super::deploy::deploy;

fn build(output: &Path, arguments: &[&str]) {
    let mut command = Command::new(deploy("build-image.sh"));
    let built = command.arg("-o").arg(output).args(arguments).env("LEVEL", "1").output().unwrap();
    assert!(built.status.success(), "{built:?}");
}

fn check(image: &Path, limit: u64) -> Output {
    let mut command = Command::new(deploy("test-image.sh"));
    command.arg(image).env("LIMIT", limit.to_string()).output().unwrap()
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

/// The index of both, by which a node's container runtime chooses.
#[test]
fn images_of_two_architectures_are_joined() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    for architecture in ["amd64", "arm64"] {
        build(&path(architecture), &["-b", "/bin/true", "-a", architecture]);
    }
    let join = |images: [&str; 2]| {
        let mut command = Command::new(deploy("index-images.sh"));
        command.args(["-t", "somewhere/proxy:1", "-o"]).arg(path("joined"));
        command.args(images.map(path)).output().unwrap()
    };
    let joined = join(["amd64", "arm64"]);
    assert!(joined.status.success(), "{joined:?}");
    let layout = path("layout");
    fs::create_dir(&layout).unwrap();
    let mut unpack = Command::new("tar");
    assert!(
        unpack.arg("-xf").arg(path("joined")).arg("-C").arg(&layout).status().unwrap().success()
    );
    let read = |file: &Path| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let file = layout.join("blobs/sha256").join(digest);
        assert_eq!(descriptor["size"], fs::metadata(&file).unwrap().len());
        file
    };
    let outer = read(&layout.join("index.json"))["manifests"][0].clone();
    assert_eq!(outer["annotations"]["io.containerd.image.name"], "somewhere/proxy:1");
    let index = read(&blob(&outer));
    let manifests = index["manifests"].as_array().unwrap();
    let platforms = manifests.iter().map(|manifest| {
        let inner = read(&blob(manifest));
        blob(&inner["layers"][0]);
        let config = read(&blob(&inner["config"]));
        assert_eq!(manifest["platform"]["architecture"], config["architecture"]);
        config["architecture"].as_str().unwrap().to_owned()
    });
    assert_eq!(platforms.collect::<Vec<_>>(), ["amd64", "arm64"]);
    let refused = join(["arm64", "arm64"]);
    assert!(!refused.status.success(), "{refused:?}");
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
