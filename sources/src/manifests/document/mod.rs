//! Decoding of a file's text into objects.
//!
//! Each document is read twice: first only its kind and name and those of its list items, then the
//! objects with the types of their kinds. An object that cannot be decoded is therefore known by
//! name, and an object of another kind cannot fail.

mod header;
mod typed;

use std::path::Path;

use switchyard_core::objects::{Event, Kind, Metadata, Object, ObjectKey, ServiceSpec};
use tracing::debug;

use self::{
    header::{Header, Meaning},
    typed::{Slot, TypedDocument},
};
use super::{
    problem::{Problem, Severity},
    syntax::{DecodeError, Document, Step, Syntax, documents, print_path},
};

/// The number of malformed objects of a list that are reported one by one: each costs another pass
/// over the document.
const MAX_PASSES: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Content {
    /// The objects that could be decoded, in the file's order.
    pub(super) objects: Vec<Object>,
    /// The problems. An error that names an object means that the file holds the object but the
    /// object could not be decoded.
    pub(super) problems: Vec<Problem>,
    /// Whether the file has a part in which not even the objects' names could be read. Objects that
    /// seem to have been removed may still be there then.
    pub(super) has_unknown: bool,
}

impl Content {
    /// Returns the content of a file that cannot be read at all.
    pub(super) fn unreadable(problem: Problem) -> Self {
        Self { problems: vec![problem], has_unknown: true, ..Self::default() }
    }

    pub(super) fn decode(file: &Path, syntax: Syntax, text: &str) -> Self {
        let mut content = Self::default();
        let (documents, rest) = documents(syntax, text);
        for document in &documents {
            content.add_document(file, document);
        }
        if let Some(error) = rest {
            let problem = problem(file, documents.len() + 1, error);
            content.add_unknown(problem);
        }
        content
    }

    fn add_document(&mut self, file: &Path, document: &Document<'_>) {
        let header = match Header::decode(document) {
            Ok(header) => header,
            Err(error) => return self.add_unknown(problem(file, document.number, error)),
        };
        let mut slots = Vec::new();
        let is_list = header.is_list();
        for (index, header) in header.objects().enumerate() {
            let slot = self.slot(file, document.number, is_list.then_some(index), &header);
            slots.push(slot);
        }
        if slots.iter().any(Option::is_some) {
            self.add_objects(file, document, TypedDocument { is_list, slots });
        }
    }

    /// Returns how to decode the object with this header; `None` if the object does not count.
    fn slot(
        &mut self,
        file: &Path,
        number: usize,
        index: Option<usize>,
        header: &Header,
    ) -> Option<Slot> {
        let mut problem = Problem {
            document: Some(number),
            ..Problem::with_file(file, "the object has no name, or a generated one")
        };
        let prefix = index.map(|index| format!("items[{index}].")).unwrap_or_default();
        let kind = match header.meaning() {
            Meaning::Known(kind) | Meaning::WrongVersion { kind, .. } => kind,
            Meaning::Other => {
                if let Some(meant) = header.meant() {
                    problem.severity = Severity::Warning;
                    problem.field = format!("{prefix}kind");
                    problem.message = format!(
                        "`{}` is not read; write `{meant}` if that is meant",
                        header.kind()
                    );
                    self.problems.push(problem);
                }
                debug!(
                    file = %file.display(), document = number, kind = header.kind(),
                    api_version = header.api_version(), "Skipping an object of another kind"
                );
                return None;
            }
            Meaning::Unknown => {
                problem.field = format!("{prefix}kind");
                problem.message = "the document names no kind".to_owned();
                self.add_unknown(problem);
                return None;
            }
        };
        let key = ObjectKey::new(
            kind,
            &Metadata {
                name: header.name().to_owned(),
                namespace: header.namespace().to_owned(),
                ..Metadata::default()
            },
        );
        if key.name.is_empty() {
            problem.field = format!("{prefix}metadata.name");
            self.add_unknown(problem);
            return None;
        }
        if let Meaning::WrongVersion { expected, .. } = header.meaning() {
            problem.field = "apiVersion".to_owned();
            problem.message = match header.api_version() {
                "" => format!("missing; should be `{expected}`"),
                found => format!("`{found}` is not supported; should be `{expected}`"),
            };
            self.add_malformed(key, problem);
            return None;
        }
        Some(Slot { kind, key })
    }

    fn add_objects(&mut self, file: &Path, document: &Document<'_>, mut typed: TypedDocument) {
        for _ in 0..MAX_PASSES {
            let error = match typed.decode(document) {
                Ok(objects) => {
                    let place = |problem| Problem {
                        severity: Severity::Warning,
                        document: Some(document.number),
                        ..Problem::with_file(file, problem)
                    };
                    for (object, (field, why)) in
                        objects.iter().filter_map(|o| Some((o, unserved(o)?)))
                    {
                        let (object, field) = (Some(object.key()), field.to_owned());
                        self.problems.push(Problem { object, field, ..place(why) });
                    }
                    self.objects.extend(objects.into_iter().filter(is_for_this_proxy));
                    return;
                }
                Err(error) => error,
            };
            let (index, depth) = match &error.path[..] {
                [Step::Field(items), Step::Index(index), ..]
                    if typed.is_list && items == "items" =>
                {
                    (*index, 2)
                }
                _ => (0, if typed.is_list { usize::MAX } else { 0 }),
            };
            let slot = match depth {
                usize::MAX => None,
                _ => typed.slots.get_mut(index).and_then(Option::take),
            };
            let Some(slot) = slot else {
                // A list that is broken outside of its items.
                return self.add_unknown(problem(file, document.number, error));
            };
            let field = print_path(&error.path[depth..]);
            let problem = Problem { field, ..problem(file, document.number, error) };
            self.add_malformed(slot.key, problem);
            if typed.slots.iter().all(Option::is_none) {
                return;
            }
        }
        for slot in typed.slots.into_iter().flatten() {
            let message = format!("not read: {MAX_PASSES} others in this document are broken");
            let problem =
                Problem { document: Some(document.number), ..Problem::with_file(file, message) };
            self.add_malformed(slot.key, problem);
        }
    }

    fn add_unknown(&mut self, problem: Problem) {
        self.has_unknown = true;
        self.problems.push(problem);
    }

    fn add_malformed(&mut self, key: ObjectKey, problem: Problem) {
        self.problems.push(Problem { object: Some(key), ..problem });
    }
}

/// Decodes a text of JSON that is one object. Returns the change that the object is, `None` if
/// objects of its kind are not read, or the problem, with the object if its name is known.
pub(super) fn decode_object(json: &str) -> Result<Option<Event>, Box<Problem>> {
    let nowhere = Path::new("");
    let broken = |number, error| Box::new(problem(nowhere, number, error));
    let refused = |message| Box::new(Problem::with_file(nowhere, message));
    let (documents, rest) = documents(Syntax::Json, json);
    let document = match (&documents[..], rest) {
        ([document], None) => document,
        (_, Some(error)) => return Err(broken(documents.len() + 1, error)),
        _ => return Err(refused("not one object")),
    };
    let header = Header::decode(document).map_err(|error| broken(1, error))?;
    if header.is_list() {
        return Err(refused("a list: its items come one by one"));
    }
    let mut content = Content::default();
    let Some(slot) = content.slot(nowhere, 1, None, &header) else {
        // A warning is about an object of a kind that is not read.
        let error = content.problems.pop().filter(|it| it.severity == Severity::Error);
        return error.map_or(Ok(None), |error| Err(Box::new(error)));
    };
    let key = slot.key.clone();
    let typed = TypedDocument { is_list: false, slots: vec![Some(slot)] };
    match typed.decode(document) {
        Ok(objects) => {
            let applied = objects.into_iter().find(is_for_this_proxy).map(Event::Apply);
            Ok(Some(applied.unwrap_or(Event::Delete(key))))
        }
        Err(error) => Err(Box::new(Problem { object: Some(key), ..*broken(1, error) })),
    }
}

fn problem(file: &Path, number: usize, error: DecodeError) -> Problem {
    Problem {
        severity: Severity::Error,
        file: file.to_owned(),
        document: Some(number),
        line: error.line,
        object: None,
        field: print_path(&error.path),
        message: error.message,
    }
}

/// Applies the label selector of the watch of EndpointSlices on an API server. Whose a Service is,
/// the tracker decides.
fn is_for_this_proxy(object: &Object) -> bool {
    let Object::EndpointSlice(slice) = object else { return true };
    let is_headless = slice.metadata.labels.contains_key("service.kubernetes.io/headless");
    if is_headless {
        debug!(object = %object.key(), "Skipping a headless Service's slice");
    }
    !is_headless
}

/// Returns the field without which nothing is served of an object that has been written by hand,
/// since an API server or a controller would set the field, and what is wrong with the field.
fn unserved(object: &Object) -> Option<(&'static str, &'static str)> {
    match object {
        Object::Service(service) if service.is_unproxied() => {
            let ServiceSpec { kind, cluster_ip, cluster_ips, ports, .. } = &service.spec;
            let is_unset = cluster_ip.is_empty() && cluster_ips.is_empty();
            (is_unset && kind != "ExternalName" && !ports.is_empty())
                .then_some(("spec.clusterIP", "unset, so that nothing is served; write an address"))
        }
        Object::EndpointSlice(slice) => {
            let is_labelled = slice.metadata.labels.contains_key("kubernetes.io/service-name");
            let why = "no label kubernetes.io/service-name, so that no Service has these endpoints";
            (!is_labelled && is_for_this_proxy(object)).then_some(("metadata.labels", why))
        }
        _ => None,
    }
}

/// The `apiVersion` in which an object of this kind is read.
fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::Service | Kind::Node => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ServiceCidr => "networking.k8s.io/v1",
    }
}

#[cfg(test)]
mod tests;
