//! Slow start, by the runner's clock.

use super::*;

fn endpoints(last: &[u8]) -> Builder {
    let made = slice("s1", "a").port("", "TCP", 80);
    last.iter().fold(made, |made, n| made.endpoint(endpoint(&format!("10.1.0.{n}"), NODE)))
}

#[tokio::test(start_paused = true)]
async fn a_new_endpoint_gets_its_share_by_and_by() {
    let running = start_with(SECOND, |log, _| {
        log.capabilities = Capabilities::KUBE_PROXY.with_weights();
    });
    running.send(list(Kind::EndpointSlice, [endpoints(&[1])])).await;
    let asking = web(1).annotation("switchyard/slow-start", "50s");
    running.send(list(Kind::Service, [asking])).await;
    pass(100_000).await;
    running.apply(&[endpoints(&[1, 2])]).await;
    // No further input comes.
    pass(200_000).await;
    let grown = [
        (0, "1"),
        (100, "10:1"),
        (105, "10:2"),
        (110, "10:3"),
        (115, "10:4"),
        (120, "10:5"),
        (125, "10:6"),
        (130, "10:7"),
        (135, "10:8"),
        (140, "10:9"),
        (145, "1:1"),
    ];
    let log = running.log.lock().unwrap();
    let programmed = log.programmed.iter().map(|(at, port)| {
        let weights: Vec<_> = port.cluster.iter().map(|e| e.weight.to_string()).collect();
        (at / 1_000, weights.join(":"))
    });
    assert_eq!(programmed.collect::<Vec<_>>(), grown.map(|(at, weights)| (at, weights.to_owned())));
}
