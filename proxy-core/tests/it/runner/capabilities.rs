//! Unsupported features are reported to the observer, once.

use switchyard_core::{
    model::{IpFamily, LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
    testing::NAMESPACE,
};

use super::*;

fn degraded(service: &str, reason: &str) -> DegradedPort {
    let name = ServicePortName {
        service: ServiceName::new(NAMESPACE, service),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    DegradedPort { port: ServicePortId { name, family: IpFamily::V4 }, reason: reason.to_owned() }
}

/// Starts a runner with a backend that can do maglev, and cannot serve the Service `odd`.
fn start_able(node: NodeConfig) -> Running {
    start_with(SECOND, |log, tracker| {
        log.capabilities = Capabilities::KUBE_PROXY.with(LbAlgorithm::Maglev);
        log.degrades = "odd";
        tracker.set_config(node);
    })
}

#[tokio::test(start_paused = true)]
async fn what_the_backend_cannot_do_is_in_the_report_and_reported_once() {
    let running = start_able(NodeConfig::new(NODE));
    let asks = |n, lb_algorithm: &str| web(n).annotation("switchyard/lb-algorithm", lb_algorithm);
    running.list(&[asks(1, "maglev"), asks(2, "least-connections")]).await;
    pass(1).await;
    let odd =
        service("odd", "10.0.0.9").port("", "TCP", 80).annotation("switchyard/lb-algorithm", "sed");
    running.apply(&[odd, asks(3, "never-queue")]).await;
    pass(10_000).await;
    running.send(Input::Compare).await;
    pass(10_000).await;

    let text = |lb_algorithm: &str| {
        format!(
            "`{lb_algorithm}` cannot be programmed in recorder mode; connections are spread by `random` instead"
        )
    };
    let log = running.log.lock().unwrap();
    let (second, third) =
        (degraded("s2", &text("least-connections")), degraded("s3", &text("never-queue")));
    assert_eq!(
        log.degraded,
        [
            (vec![second.clone()], 0, PerFamily { v4: 1, v6: 0 }),
            (vec![degraded("odd", "odd"), third.clone()], 1, PerFamily { v4: 2, v6: 0 }),
            (vec![second, third], 0, PerFamily { v4: 2, v6: 0 }),
        ]
    );
    assert_eq!(log.replaced_defaults, [""; 0]);
    let problem = |service: &str, text| {
        format!("Service ns/{service}: metadata.annotations[switchyard/lb-algorithm]: {text}")
    };
    let [first, invalid, last] = log.rejected.as_slice() else { panic!("{:?}", log.rejected) };
    assert_eq!(*first, problem("s2", text("least-connections")));
    assert!(invalid.starts_with("Service ns/odd: "), "{invalid}");
    assert_eq!(*last, problem("s3", text("never-queue")));
    let mut used: Vec<_> = log.programmed.iter().map(|(_, port)| port.lb_algorithm).collect();
    used.sort_unstable();
    use LbAlgorithm::{Maglev, Random};
    assert_eq!(used, [Random, Random, Random, Maglev]);
}

#[tokio::test(start_paused = true)]
async fn a_default_that_cannot_be_programmed_is_reported_once() {
    let config = |lb_algorithm| {
        let mut config = NodeConfig::new(NODE);
        config.lb_algorithm = Some(lb_algorithm);
        config
    };
    let running = start_able(config(LbAlgorithm::SourceHash));
    running.list(&[web(1), web(2)]).await;
    pass(10_000).await;
    running.apply(&[web(3)]).await;
    pass(10_000).await;
    assert_eq!(running.log.lock().unwrap().replaced_defaults, ["recorder: source-hash -> maglev"]);
    for lb_algorithm in [LbAlgorithm::Maglev, LbAlgorithm::RoundRobin] {
        running.send(Input::Node(config(lb_algorithm))).await;
        pass(10_000).await;
    }
    let log = running.log.lock().unwrap();
    assert_eq!(log.replaced_defaults[1..], ["recorder: round-robin -> random"]);
    assert_eq!(log.rejected, [""; 0]);
    let is_fine = |(degraded, _, count): &(Vec<_>, _, _)| {
        degraded.is_empty() && *count == PerFamily::default()
    };
    assert!(log.degraded.iter().all(is_fine));
}
