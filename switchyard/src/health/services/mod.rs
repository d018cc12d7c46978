//! The health of single Services (`healthCheckNodePort`), by which load balancers find the nodes
//! that have endpoints of a Service.

mod servers;
mod updates;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Instant;

use bytes::Bytes;
use hyper::{
    Request, StatusCode,
    header::{HeaderName, HeaderValue},
};
use switchyard_core::model::ServiceName;

pub use self::{
    servers::{HealthChecks, NotServed, ServiceHealthServers},
    updates::HealthCheckUpdates,
};
use crate::health::{
    ProxyHealth,
    http::{Answer, Handler, JSON, answer, with_header},
};

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The handler for a Service in a family, which answers on every path.
struct ServiceHealthHandler {
    service: ServiceName,
    local_endpoints: Arc<AtomicUsize>,
    health: Arc<ProxyHealth>,
}

impl Handler for ServiceHealthHandler {
    /// Returns status 503 if the node has no endpoint, or if the proxy is unhealthy.
    fn answer(&self, _: &Request<Bytes>) -> Answer {
        let count = self.local_endpoints.load(Ordering::Relaxed);
        let healthy = self.health.report(Instant::now()).healthy();
        let status = match count > 0 && healthy {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut answer = answer(status, JSON, body(&self.service, count, healthy));
        with_header(&mut answer, WEIGHT, HeaderValue::from(count));
        answer
    }
}

/// Returns the body. Names of Services need no escaping, since the tracker has validated them.
fn body(service: &ServiceName, count: usize, healthy: bool) -> String {
    let (namespace, name) = service.parts();
    format!(
        "{{\n\
         \t\"service\": {{\n\
         \t\t\"namespace\": \"{namespace}\",\n\
         \t\t\"name\": \"{name}\"\n\
         \t}},\n\
         \t\"localEndpoints\": {count},\n\
         \t\"serviceProxyHealthy\": {healthy}\n\
         }}"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use jiff::Timestamp;
    use switchyard_core::model::IpFamily;

    use super::*;
    use crate::health::http::get;

    async fn ask(count: usize, waiting: Duration) -> (u16, String, String) {
        let health = ProxyHealth::new(Duration::from_secs(60));
        health.started(&IpFamily::ALL, Timestamp::now());
        health.sync_requested(Instant::now() - waiting);
        let handler = ServiceHealthHandler {
            service: ServiceName::new("shop", "web"),
            local_endpoints: Arc::new(count.into()),
            health: Arc::new(health),
        };
        let answer = handler.answer(&get("/anything"));
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        let weight = answer.headers()[WEIGHT].to_str().unwrap().to_owned();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, weight, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn answers_are_kube_proxys() {
        let text = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\
                    \n\t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": true\n}";
        // The node is not eligible, which has no effect here.
        assert_eq!(ask(3, Duration::ZERO).await, (200, "3".into(), text.into()));
        let (status, weight, body) = ask(0, Duration::ZERO).await;
        assert_eq!((status, weight.as_str()), (503, "0"));
        assert!(body.contains("\"localEndpoints\": 0,"), "{body}");
        let (status, weight, body) = ask(3, Duration::from_secs(61)).await;
        assert_eq!((status, weight.as_str()), (503, "3"));
        assert!(body.ends_with("\"serviceProxyHealthy\": false\n}"), "{body}");
    }
}
