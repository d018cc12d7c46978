//! All EndpointSlices, several per Service.

use std::sync::Arc;

use crate::{
    config::NodeConfig,
    model::{HashMap, ServiceName, shrink_table},
    objects::{self, Kind, ObjectKey},
    parsed::{
        problem::Problems,
        service::Service,
        slice::{Slice, SliceParser},
    },
};

/// All slices, by Service.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// In the order of the slices' names.
    by_service: HashMap<ServiceName, Vec<(Arc<str>, Slice)>>,
    /// The Service whose endpoints each slice (by namespace and name) has.
    owners: HashMap<(Arc<str>, Arc<str>), ServiceName>,
    parser: SliceParser,
}

impl Slices {
    /// The slices of a Service, in the order of their names.
    pub(crate) fn get(&self, service: &ServiceName) -> impl Iterator<Item = &Slice> + Clone {
        self.by_service.get(service).into_iter().flatten().map(|(_, slice)| slice)
    }

    /// The name of a Service that has slices, to be shared.
    pub(crate) fn name(&self, service: &ServiceName) -> Option<&ServiceName> {
        self.by_service.get_key_value(service).map(|(name, _)| name)
    }

    /// Adds a slice, or changes it. Shares the names of `services`. Returns the Services whose
    /// endpoints changed, the slice's own first.
    pub(crate) fn apply(
        &mut self,
        object: &objects::EndpointSlice,
        key: &ObjectKey,
        node: &NodeConfig,
        services: &HashMap<ServiceName, Arc<Service>>,
        problems: &mut Problems,
    ) -> Vec<ServiceName> {
        let Some((service, slice)) = self.parser.parse(object, key, node, problems) else {
            return self.remove(&key.namespace, &key.name);
        };
        let owner_key = (self.parser.intern(&key.namespace), Arc::from(&*key.name));
        let before = match self.owners.get(&owner_key) {
            Some(owner) if *owner != service => self.remove(&owner_key.0, &owner_key.1),
            _ => Vec::new(),
        };
        let known = self.name(&service).or(services.get_key_value(&service).map(|(name, _)| name));
        let service = known.cloned().unwrap_or(service);
        let slices = self.by_service.entry(service.clone()).or_default();
        match slices.binary_search_by(|(name, _)| name.cmp(&owner_key.1)) {
            Ok(place) if slices[place].1 == slice => return before,
            Ok(place) => slices[place].1 = slice,
            Err(place) => {
                // Most Services have one or two.
                slices.reserve_exact(if slices.len() < 4 { 1 } else { slices.len() / 2 });
                slices.insert(place, (owner_key.1.clone(), slice));
                self.owners.insert(owner_key, service.clone());
            }
        }
        [vec![service], before].concat()
    }

    /// Removes a slice. Returns the Services whose endpoints changed.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> Vec<ServiceName> {
        let Some(service) = self.owners.remove(&(namespace.into(), name.into())) else {
            return Vec::new();
        };
        if let Some(slices) = self.by_service.get_mut(&service) {
            if let Ok(place) = slices.binary_search_by(|(known, _)| (**known).cmp(name)) {
                slices.remove(place);
            }
            if slices.is_empty() {
                self.by_service.remove(&service);
            }
        }
        vec![service]
    }

    /// The Service whose endpoints a slice has.
    pub(crate) fn owner(&self, namespace: &str, name: &str) -> Option<&ServiceName> {
        self.owners.get(&(namespace.into(), name.into()))
    }

    /// Gives back the room that slices had which are gone.
    pub(crate) fn shrink(&mut self) {
        shrink_table(&mut self.by_service);
        shrink_table(&mut self.owners);
    }

    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.owners.keys().map(|(namespace, name)| ObjectKey {
            kind: Kind::EndpointSlice,
            namespace: namespace.to_string(),
            name: name.to_string(),
        })
    }
}
