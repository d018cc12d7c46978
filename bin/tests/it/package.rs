//! The Debian package and its systemd unit: the unit is valid and confines the program, and the
//! package is installed and removed in a root file system of the test's own. And a release, but
//! for its publication.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

use super::deploy::{accepted, deploy};

/// Runs a program to its end, and returns what it wrote.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

/// The unit is checked with the path of a program that exists.
#[test]
fn the_unit_is_valid_and_confined() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        packet_rig::skipped("systemd-analyze is not installed");
        return;
    }
    let directory = TempDir::new().unwrap();
    let unit = directory.path().join("switchyard.service");
    let text = fs::read_to_string(deploy("systemd/switchyard.service")).unwrap();
    fs::write(&unit, text.replace("/usr/bin/switchyard", env!("CARGO_BIN_EXE_switchyard")))
        .unwrap();
    let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
    assert_eq!(said, "", "warnings do not fail the command");
    // In tenths: units without restrictions have 9.6, and what the program needs is 1.8.
    let limit = ["security", "--offline=true", "--threshold=18"];
    run(Command::new("systemd-analyze").args(limit).arg(&unit));
}

#[test]
fn the_packaged_configuration_is_accepted() {
    let text = fs::read_to_string(deploy("systemd/config.yaml")).unwrap();
    let config = accepted(&text);
    assert_eq!(config["clientConnection"]["kubeconfig"], "/etc/switchyard/kubeconfig");
    let unit = fs::read_to_string(deploy("systemd/switchyard.service")).unwrap();
    assert!(unit.contains("ConditionPathExists=/etc/switchyard/kubeconfig\n"), "{unit}");
}

#[test]
fn the_package_is_installed_and_removed() {
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    if !is_root || Command::new("dpkg").arg("--version").output().is_err() {
        packet_rig::skipped("dpkg cannot install as this user");
        return;
    }
    let directory = TempDir::new().unwrap();
    let made = directory.path().join("made");
    let binary = env!("CARGO_BIN_EXE_switchyard");
    run(Command::new(deploy("build-deb.sh")).args(["-z", "none", "-o"]).arg(&made).arg(binary));
    let package = fs::read_dir(&made).unwrap().next().unwrap().unwrap().path();

    let root = directory.path().join("root");
    for folder in ["etc", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (file, text) in [
        ("etc/passwd", "root:x:0:0::/:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("var/lib/dpkg/status", ""),
    ] {
        fs::write(root.join(file), text).unwrap();
    }
    let dpkg = |action: &str, argument: &Path| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", root.display()));
        run(command.args(["--force-script-chrootless", "--force-depends", action]).arg(argument))
    };
    dpkg("--install", &package);
    let says = run(Command::new(root.join("usr/bin/switchyard")).arg("--version"));
    assert!(says.starts_with("switchyard "), "{says}");
    assert!(fs::read_to_string(root.join("etc/passwd")).unwrap().contains("\nswitchyard:"));
    let texts = [
        "usr/lib/systemd/system/switchyard.service",
        "usr/share/man/man1/switchyard.1.gz",
        "usr/share/bash-completion/completions/switchyard",
        "usr/share/zsh/vendor-completions/_switchyard",
        "usr/share/fish/vendor_completions.d/switchyard.fish",
    ];
    for text in texts {
        assert_ne!(fs::metadata(root.join(text)).unwrap().len(), 0, "{text}");
    }

    // A second installation keeps a configuration that was changed, and what is not the package's.
    let (config, kubeconfig) =
        (root.join("etc/switchyard/config.yaml"), root.join("etc/switchyard/kubeconfig"));
    fs::write(&config, "changed").unwrap();
    fs::write(&kubeconfig, "secret").unwrap();
    dpkg("--install", &package);
    assert_eq!(fs::read_to_string(&config).unwrap(), "changed");
    dpkg("--remove", Path::new("switchyard"));
    assert!(!root.join("usr").exists() && config.exists());
    dpkg("--purge", Path::new("switchyard"));
    assert!(!config.exists());
    assert_eq!(fs::read_to_string(kubeconfig).unwrap(), "secret");
}

/// Also that cargo-binstall finds the program in its archive.
#[test]
fn a_release_is_made_without_publishing_it() {
    let has = |program: &str| Command::new(program).arg("--help").output().is_ok();
    if !has("helm") || !has("dpkg-deb") {
        packet_rig::skipped("helm is not installed");
        return;
    }
    let made = TempDir::new().unwrap();
    let release = || {
        let mut command = Command::new(deploy("../scripts/release.sh"));
        command.envs([("LEVEL", "1"), ("COMPRESSION", "none")]).env_remove("REGISTRY");
        command
    };
    let binary = format!("amd64={}", env!("CARGO_BIN_EXE_switchyard"));
    run(release().args(["--dry-run", "-b", &binary, "-o"]).arg(made.path()));

    let here = || fs::read_dir(made.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let sums = fs::read_to_string(made.path().join("SHA256SUMS")).unwrap();
    for file in here().filter(|file| file != "SHA256SUMS") {
        let file = file.into_string().unwrap();
        assert!(sums.lines().any(|line| line.ends_with(&format!("  {file}"))), "{file}: {sums}");
    }
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(made.path()));
    let changes = fs::read_to_string(deploy("../CHANGELOG.md")).unwrap();
    let notes = fs::read_to_string(made.path().join("notes.md")).unwrap();
    assert!(changes.contains(&notes) && notes.contains("\n### Proxying\n"), "{notes}");

    let version = env!("CARGO_PKG_VERSION");
    let filled = |key: &str| {
        let manifest = include_str!("../../Cargo.toml");
        let line =
            manifest.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap();
        let named = line.trim_matches('"').replace("{ version }", version);
        named.replace("{ target-arch }", "x86_64").replace("{ bin }", "switchyard")
    };
    let (url, program) = (filled("pkg-url"), filled("bin-dir"));
    let archive = made.path().join(url.rsplit_once('/').unwrap().1);
    let files = run(Command::new("tar").arg("-tzf").arg(&archive));
    assert!(files.lines().any(|file| file == program), "{files}");
    let chart = made.path().join(format!("switchyard-{version}.tgz"));
    assert!(run(Command::new("helm").args(["show", "chart"]).arg(chart)).contains(version));

    let refused = release().output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("REGISTRY"), "{refused:?}");
}

#[test]
fn a_release_is_published_whole_and_again_after_a_failure() {
    let here = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = here.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir(here.path()).env("REGISTRY", "example.org/a");
        command
    };
    write("Cargo.toml", "version = \"1.2.3\"\n");
    for file in
        ["1.2.3-iptables-amd64.oci.tar", "1.2.3-nftables.oci.tar", "1.2.3.tgz", "1.2.3.cdx.json"]
    {
        write(&format!("target/release-files/switchyard-{file}"), file);
    }
    // Each notes how it was called. The registry fails once.
    for program in ["cosign", "gh", "helm", "skopeo"] {
        write(&format!("tools/{program}"), "#!/bin/sh\necho \"${0##*/} $*\" >>calls\n");
    }
    write(
        "tools/skopeo",
        "#!/bin/sh\necho \"skopeo $*\" >>calls\n[ -e failed ] || { touch failed; exit 1; }\n\
         echo sha256:$(echo \"$5\" | wc -c) >\"$4\"\n",
    );
    run(sh("git init -q . && git add Cargo.toml && \
        git -c user.name=a -c user.email=a@example.org commit -qm a && chmod +x tools/* && mkdir scripts && \
        cp \"$1\" scripts/ && cd target/release-files && touch notes.md && sha256sum * >SHA256SUMS")
    .args(["sh"])
    .arg(deploy("../scripts/publish.sh")));
    let publish = || {
        sh("PATH=$PWD/tools:$PATH GITHUB_OUTPUT=$PWD/output scripts/publish.sh").output().unwrap()
    };

    assert!(!publish().status.success() && !here.path().join("calls").exists(), "not tagged");
    run(&mut sh("git tag v1.2.3"));
    assert!(!publish().status.success(), "the registry failed");
    let calls = || fs::read_to_string(here.path().join("calls")).unwrap();
    assert!(!calls().contains("cosign sign --"), "{}", calls());
    let again = publish();
    assert!(again.status.success(), "{again:?}");
    let calls = calls();
    for (call, times) in [
        ("skopeo copy --all", 3),
        ("cosign sign --yes --recursive example.org/a/switchyard@sha256:", 2),
        ("cosign attest --yes --type cyclonedx", 2),
        ("helm push target/release-files/switchyard-1.2.3.tgz oci://example.org/a/charts", 1),
        ("gh release upload v1.2.3 --clobber target/release-files/SHA256SUMS", 2),
    ] {
        assert_eq!(calls.matches(call).count(), times, "{call}: {calls}");
    }
    // The image without iptables is the subject of the provenance.
    let image = "docker://example.org/a/switchyard:1.2.3";
    assert!(calls.lines().any(|line| line.ends_with(image)), "{calls}");
    let output = fs::read_to_string(here.path().join("output")).unwrap();
    assert!(output.starts_with("digest=sha256:"), "{output}");

    write("target/release-files/switchyard-1.2.3.tgz", "other");
    let refused = publish();
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(said.contains("switchyard-1.2.3.tgz: FAILED"), "{refused:?}");
}
