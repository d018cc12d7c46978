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
async fn what_the_backend_cannot_do_is_in_the_report_after_what_it_reports_itself() {
    let running = start_able(NodeConfig::new(NODE));
    let asks = |made: Builder| made.annotation("switchyard/lb-algorithm", "never-queue");
    let odd = service("odd", "10.0.0.9").port("", "TCP", 80);
    running.list(&[asks(web(1)), odd]).await;
    pass(1).await;
    let reason = "`never-queue` cannot be programmed in recorder mode; connections are spread by \
                  `random` instead";
    let log = running.log.lock().unwrap();
    let both = vec![degraded("odd", "odd"), degraded("s1", reason)];
    assert_eq!(log.degraded, [(both, 1, PerFamily { v4: 1, v6: 0 })]);
    assert_eq!(log.rejected.len(), 1, "{:?}", log.rejected);
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
