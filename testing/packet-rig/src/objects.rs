//! Objects of a cluster as documents of YAML, for tests whose manifests are no data of a case.

/// A Service of the namespace `default`, with these annotations and the fields of its `spec`.
pub fn service(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n\
         spec: {{{spec}}}\n"
    )
}

/// An EndpointSlice of a Service, with these ports, for the pods of one family at these addresses:
/// the third number of an address is that of the pod's node.
pub fn slice(service: &str, ports: &str, addresses: &[&str]) -> String {
    let family = if addresses.iter().any(|address| address.contains(':')) { 6 } else { 4 };
    let endpoint = |address: &&str| {
        let node = if address.contains("244:1:") || address.contains(".244.1.") { 1 } else { 2 };
        format!("{{addresses: [\"{address}\"], nodeName: node-{node}}}")
    };
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {service}-{family}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         addressType: IPv{family}\nports: [{ports}]\nendpoints: [{}]\n",
        endpoints.join(", ")
    )
}
