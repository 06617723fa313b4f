//! Revisions of pod templates: hashes, and the ControllerRevisions of StatefulSets and DaemonSets.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::member::store::{Index, Key};
use crate::member::world::{SharedObject, World};

use super::pods::Parent;

/// Label with the hash of the pod's template.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// Alphabet of Kubernetes' generated names: no vowels and no similar characters.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A short hash of a template; `collisions` varies it.
pub fn hash(template: &PodTemplateSpec, collisions: i32) -> Result<String> {
    let text = serde_json::to_vec(template).map_err(|source| Error::Encode { what: "pod template", source })?;
    let bytes = text.into_iter().chain(collisions.to_le_bytes().into_iter().filter(|_| collisions != 0));
    // 32-bit FNV-1a, as in names of real ReplicaSets.
    let sum = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Ok(sum.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect())
}

/// The revisions of a workload, oldest first, and that of its current template.
pub struct Revisions {
    pub all: Vec<SharedObject<ControllerRevision>>,
    pub current: SharedObject<ControllerRevision>,
}

impl Revisions {
    /// Finds or creates the revision of a template.
    pub async fn of(world: &World, parent: &Parent, template: &PodTemplateSpec, labels: &Value) -> Result<Self> {
        let mut all = world.revisions.by(&Index::Owner(parent.subject.uid.clone()));
        all.sort_by_key(|revision| revision.revision);
        let data = json!({"spec": {"template": template_data(template)?}});
        let newest = all.last().map_or(0, |revision| revision.revision.unwrap_or_default());
        let found = all.iter().position(|revision| revision.data.0 == data);
        let current = match found {
            Some(at) if at + 1 == all.len() => all[at].clone(),
            Some(at) => {
                // A rollback makes the old revision the newest.
                let revision = all.remove(at);
                let key =
                    Key::new(&parent.subject.key.namespace, revision.metadata.name.as_deref().unwrap_or_default());
                let patched = world.patch(&world.revisions, &key, None, &json!({"revision": newest + 1})).await?;
                all.push(patched.clone());
                patched
            }
            None => {
                let created = create(world, parent, template, labels, data, newest + 1).await?;
                all.push(created.clone());
                created
            }
        };
        Ok(Self { all, current })
    }

    /// Deletes unused old revisions above the history limit.
    pub async fn trim(&self, world: &World, limit: i32, in_use: impl Fn(&str) -> bool) -> Result<()> {
        let old: Vec<_> = self.all.iter().filter(|revision| !in_use(name(revision))).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        for revision in old.into_iter().take(surplus) {
            world.delete(&world.revisions, revision).await?;
        }
        Ok(())
    }

    /// The template of a revision.
    pub fn template(&self, wanted: &str) -> Option<PodTemplateSpec> {
        let revision = self.all.iter().find(|revision| name(revision) == wanted)?;
        let mut template = revision.data.0["spec"]["template"].clone();
        template.as_object_mut()?.remove("$patch");
        serde_json::from_value(template).ok()
    }
}

/// Name of a revision.
pub fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or_default()
}

fn template_data(template: &PodTemplateSpec) -> Result<Value> {
    let mut data = serde_json::to_value(template).map_err(|source| Error::Encode { what: "pod template", source })?;
    data["$patch"] = json!("replace");
    Ok(data)
}

async fn create(
    world: &World,
    parent: &Parent,
    template: &PodTemplateSpec,
    labels: &Value,
    data: Value,
    number: i64,
) -> Result<SharedObject<ControllerRevision>> {
    let mut collisions = 0;
    loop {
        let hash = hash(template, collisions)?;
        let mut labels = labels.clone();
        labels[HASH_LABEL] = json!(hash);
        let revision = json!({
            "metadata": {
                "name": format!("{}-{hash}", parent.subject.key.name), "namespace": &*parent.subject.key.namespace,
                "labels": labels, "ownerReferences": [parent.reference()],
            },
            "data": data,
            "revision": number,
        });
        let revision: ControllerRevision =
            serde_json::from_value(revision).map_err(|source| Error::Encode { what: "controller revision", source })?;
        match world.create(&world.revisions, &revision).await {
            Err(error) if error.is_conflict() && collisions < 10 => collisions += 1,
            outcome => return outcome,
        }
    }
}
