use super::*;

fn yaml(text: &str) -> Content {
    Content::decode(Path::new("x.yaml"), Syntax::Yaml, text)
}

fn keys(content: &Content) -> Vec<String> {
    content.objects.iter().map(|object| object.key().to_string()).collect()
}

fn problems(content: &Content) -> Vec<String> {
    content.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn four_kinds_are_read_and_others_passed_over() {
    let content = yaml(
        "
apiVersion: v1
kind: Service
metadata: {name: web, creationTimestamp: null}
spec: {clusterIP: 10.0.0.1, ports: [{port: 80, targetPort: http, nodePort: null}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: 5}
spec: {template: {spec: {}}}
items: [a, b]
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: other}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: 014}}
addressType: IPv4
endpoints: [{addresses: [010.1.0.1], conditions: {ready: yes}, zone: a}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes, namespace: ignored}
spec: {cidrs: [10.0.0.0/16]}
",
    );
    assert_eq!(problems(&content), [""; 0]);
    assert!(!content.has_unknown);
    assert_eq!(
        keys(&content),
        ["Service default/web", "EndpointSlice shop/web-1", "Node n1", "ServiceCIDR kubernetes"]
    );
    let Object::EndpointSlice(slice) = &content.objects[1] else { panic!() };
    assert_eq!(slice.metadata.labels["kubernetes.io/service-name"], "014");
    assert_eq!(slice.endpoints[0].addresses, ["010.1.0.1"]);
    assert_eq!(slice.ports[0].name.as_deref(), Some(""), "the API server's default");
    assert_eq!(slice.endpoints[0].conditions.ready, Some(true));
}

#[test]
fn lists_are_opened() {
    let content = yaml(
        "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {items: x}}
- {apiVersion: v1, kind: Node, metadata: {name: c}}
---
kind: ServiceList
apiVersion: v1
metadata: {resourceVersion: '1'}
items:
- metadata: {name: d}
- metadata: {name: e}
---
{kind: PodList, apiVersion: v1, items: [{metadata: {name: f}}]}
---
{kind: List, apiVersion: v1, items: null}
",
    );
    assert_eq!(problems(&content), [""; 0]);
    let expected = ["Service default/a", "Node c", "Service default/d", "Service default/e"];
    assert_eq!(keys(&content), expected);
    // As `kubectl get -o json` sorts: the items come before the kind.
    let text = r#"{"apiVersion":"v1","items":[{"apiVersion":"v1","kind":"Node",
        "metadata":{"name":"n"}}],"kind":"List"} {"apiVersion":"v1","kind":"Node",
        "metadata":{"name":"m"}}"#;
    let content = Content::decode(Path::new("x.json"), Syntax::Json, text);
    assert_eq!(
        (keys(&content), problems(&content)),
        (vec!["Node n".into(), "Node m".into()], vec![])
    );
}

#[test]
fn an_object_that_cannot_be_decoded_is_named_with_field_and_line() {
    let content = yaml(
        "apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  ports:
  - port: 80
  - port: 80,443
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: b}}
- apiVersion: v1
  kind: Service
  metadata: {name: c}
  spec:
    clusterIPs: 10.0.0.1
- {apiVersion: v1, kind: Service, metadata: {name: d}, spec: {ports: [{nodePort: 014}]}}
- {apiVersion: v1, kind: Service, metadata: {name: e}}
",
    );
    assert_eq!(keys(&content), ["Service default/b", "Service default/e"]);
    assert!(!content.has_unknown);
    let problems = problems(&content);
    assert_eq!(problems.len(), 3, "{problems:#?}");
    for (problem, start) in problems.iter().zip([
        "x.yaml, document 1, line 7: Service default/a: spec.ports[1].port: `80,443` is not a whole number",
        "x.yaml, document 2, line 17: Service default/c: spec.clusterIPs: ",
        "x.yaml, document 2, line 18: Service default/d: spec.ports[0].nodePort: ",
    ]) {
        assert!(problem.starts_with(start) && problem.len() > start.len() + 5, "{problem}");
    }
}

#[test]
fn an_object_without_identity_is_unknown() {
    for (text, place) in [
        (
            "kind: Service\napiVersion: v1\nmetadata: {generateName: a-}\n",
            "document 1: metadata.name",
        ),
        ("apiVersion: v1\nmetadata: {name: a}\n", "document 1: kind"),
        ("just text\n", "document 1, line 1"),
        ("a: [1\n", "document 1, line"),
        ("{}\n---\nkind: Service\n\tapiVersion: v1\n", "document 2, line 3"),
        (
            "kind: List\napiVersion: v1\nitems: [{apiVersion: v1, kind: Node}]",
            "document 1: items[0].metadata.name",
        ),
    ] {
        let content = yaml(text);
        assert!(content.has_unknown, "{text}");
        let problems = problems(&content);
        assert!(problems.last().unwrap().contains(place), "{text}: {problems:?}");
    }
    let content = Content::decode(Path::new("x.json"), Syntax::Json, "{\"kind\": \n}");
    assert!(content.has_unknown && problems(&content)[0].contains("line 2"), "{content:?}");
}

#[test]
fn the_version_is_checked() {
    let content = yaml(
        "{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, metadata: {name: a}}\n---
{kind: Service, metadata: {name: b}}\n---
{apiVersion: v2, kind: Node, metadata: {name: c}}\n",
    );
    assert_eq!(
        problems(&content),
        [
            "x.yaml, document 1: EndpointSlice default/a: apiVersion: `discovery.k8s.io/v1beta1` \
             is not supported; should be `discovery.k8s.io/v1`",
            "x.yaml, document 2: Service default/b: apiVersion: missing; should be `v1`",
            "x.yaml, document 3: Node c: apiVersion: `v2` is not supported; should be `v1`",
        ]
    );
    assert!(content.objects.is_empty() && !content.has_unknown);
}

#[test]
fn slices_of_headless_services_are_left_out() {
    let content = yaml(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: b, labels: {service.kubernetes.io/headless: ''}}}
---
{apiVersion: v1, kind: Service, metadata: {name: c, labels: {service.kubernetes.io/headless: ''}}}
",
    );
    assert_eq!((keys(&content), problems(&content)), (vec!["Service default/c".into()], vec![]));
}

#[test]
fn an_object_alone_is_decoded_as_one_of_a_file() {
    let decoded = |json: &str| match decode_object(json) {
        Ok(Some(Event::Apply(object))) => format!("apply {}", object.key()),
        Ok(Some(Event::Delete(key))) => format!("delete {key}"),
        Ok(None) => "not read".to_owned(),
        Ok(other) => panic!("{other:?}"),
        Err(problem) => {
            let Problem { object, field, message, .. } = *problem;
            format!(
                "{}; {field}: {message}",
                object.map_or_else(String::new, |key| key.to_string())
            )
        }
    };
    let slice = r#""apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice""#;
    for (json, expected) in [
        (
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#,
            "apply Service default/a",
        ),
        (
            &format!(
                r#"{{{slice}, "metadata": {{"name": "a", "labels": {{"service.kubernetes.io/headless": ""}}}}}}"#
            ),
            "delete EndpointSlice default/a",
        ),
        (
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": "x"}]}}"#,
            "Service default/a; spec.ports[0].port: invalid type: string \"x\", expected a whole number of 64 bits",
        ),
        (
            r#"{"kind": "Node", "metadata": {"name": "a"}}"#,
            "Node a; apiVersion: missing; should be `v1`",
        ),
        (r#"{"apiVersion": "v1", "kind": "Pod"}"#, "not read"),
        (r#"{"apiVersion": "v1", "kind": "Endpoints"}"#, "not read"),
        (r#"{"kind": "List", "items": []}"#, "; : a list: its items come one by one"),
        ("{}", "; kind: the document names no kind"),
        ("{} {}", "; : not one object"),
        ("", "; : not one object"),
        ("{", "; : EOF while parsing an object"),
    ] {
        assert_eq!(decoded(json), expected, "{json}");
    }
}

#[test]
fn a_list_of_broken_objects_ends() {
    let mut text = "kind: ServiceList\napiVersion: v1\nitems:\n".to_owned();
    for index in 0..300 {
        text.push_str(&format!("- {{metadata: {{name: s{index}}}, spec: []}}\n"));
    }
    let content = yaml(&text);
    assert_eq!(content.problems.len(), 300);
    assert!(content.problems.iter().all(|problem| problem.object.is_some()));
    assert!(content.problems[299].message.contains("100 others"));
}

#[test]
fn a_yaml_bomb_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(", ")));
    }
    text.push_str("kind: Service\napiVersion: v1\n");
    let content = yaml(&text);
    assert!(content.has_unknown, "{content:?}");
}

#[test]
fn the_kind_is_that_of_the_document() {
    let plain = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n";
    for (text, service) in [
        (plain.replace("kind: Service", "\"kind\": 'Service' # quoted"), true),
        (plain.replace("v1", "serving.knative.dev/v1"), false),
        (plain.replace("name: a", "name: a\n  kind: Node"), true),
        (format!("data: |\n  kind: Pod\n{plain}"), true),
    ] {
        let content = yaml(&text);
        let found = (content.objects.len(), problems(&content).len());
        assert_eq!(found, (service.into(), 0), "{text}");
    }
    let content = yaml(&format!("{plain}kind: Node\n"));
    assert!(content.objects.is_empty() && problems(&content)[0].contains("duplicate"));
}

#[test]
fn what_is_probably_meant_otherwise_is_a_warning() {
    let slice = "kind: EndpointSlice\napiVersion: discovery.k8s.io/v1\naddressType: IPv4\n";
    let text = format!(
        "{{kind: Service, apiVersion: v1, metadata: {{name: a}}, spec: {{ports: [{{port: 80}}]}}}}\n\
         ---\n{slice}metadata: {{name: b}}\n\
         ---\n{slice}metadata: {{name: c, labels: {{kubernetes.io/service-name: a}}}}\n\
         ---\n{{kind: Serivce, apiVersion: v1, metadata: {{name: d}}}}\n\
         ---\n{{kind: Endpoints, apiVersion: v1, metadata: {{name: e}}}}\n\
         ---\n{{kind: Service, apiVersion: serving.knative.dev/v1, metadata: {{name: f}}}}\n"
    );
    let content = yaml(&text);
    assert_eq!(content.objects.len(), 3, "they are used");
    assert!(content.problems.iter().all(|problem| problem.severity == Severity::Warning));
    let expected = [
        "x.yaml, document 1: Service default/a: spec.clusterIP: unset, so that nothing is served; \
         write an address",
        "x.yaml, document 2: EndpointSlice default/b: metadata.labels: no label \
         kubernetes.io/service-name, so that no Service has these endpoints",
        "x.yaml, document 4: kind: `Serivce` is not read; write `Service` if that is meant",
        "x.yaml, document 5: kind: `Endpoints` is not read; write `EndpointSlice` if that is meant",
    ];
    assert_eq!(content.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}
