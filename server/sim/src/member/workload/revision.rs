//! Revisions of pod templates: hashes, and the ControllerRevisions of StatefulSets and DaemonSets.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::member::context::{MemberContext, SharedObject};
use crate::member::store::{Index, Key};

use super::pods::WorkloadOwner;

/// Label with the hash of the template of a pod or revision.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// Alphabet of Kubernetes' generated names: no vowels and no similar characters.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Computes a short hash of a template. Different `collisions` yield different hashes. Fails if the template cannot be
/// encoded.
pub fn template_hash(template: &PodTemplateSpec, collisions: i32) -> Result<String> {
    let text = serde_json::to_vec(template).map_err(|source| Error::Encode { object: "pod template", source })?;
    let bytes = text.into_iter().chain(collisions.to_le_bytes().into_iter().filter(|_| collisions != 0));
    // 32-bit FNV-1a, as in names of real ReplicaSets.
    let sum = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Ok(sum.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect())
}

/// The revisions of a workload.
pub struct Revisions {
    /// All revisions, oldest first.
    pub all: Vec<SharedObject<ControllerRevision>>,
    /// Revision of the current template.
    pub current: SharedObject<ControllerRevision>,
}

impl Revisions {
    /// Reads the revisions of a workload, and creates that of its current template if it is missing.
    pub async fn find_or_create(
        context: &MemberContext,
        owner: &WorkloadOwner,
        template: &PodTemplateSpec,
        labels: &Value,
    ) -> Result<Self> {
        let mut all = context.revisions.by_index(&Index::Owner(owner.subject.uid.clone()));
        all.sort_by_key(|revision| revision.revision);
        let data = json!({"spec": {"template": template_data(template)?}});
        let newest = all.last().map_or(0, |revision| revision.revision.unwrap_or_default());
        let position = all.iter().position(|revision| revision.data.0 == data);
        let current = match position {
            Some(index) if index + 1 == all.len() => all[index].clone(),
            Some(index) => {
                // A rollback makes the old revision the newest.
                let revision = all.remove(index);
                let key = Key::new(&owner.subject.key.namespace, revision.metadata.name.as_deref().unwrap_or_default());
                let patched = context.patch(&context.revisions, &key, None, &json!({"revision": newest + 1})).await?;
                all.push(patched.clone());
                patched
            }
            None => {
                let created = create(context, owner, template, labels, data, newest + 1).await?;
                all.push(created.clone());
                created
            }
        };
        Ok(Self { all, current })
    }

    /// Deletes unused old revisions above the history limit.
    pub async fn delete_old(
        &self,
        context: &MemberContext,
        limit: i32,
        is_in_use: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let old: Vec<_> = self.all.iter().filter(|revision| !is_in_use(name(revision))).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        for revision in old.into_iter().take(surplus) {
            context.delete(&context.revisions, revision).await?;
        }
        Ok(())
    }

    /// Template of the revision with this name.
    pub fn template(&self, revision_name: &str) -> Option<PodTemplateSpec> {
        let revision = self.all.iter().find(|revision| name(revision) == revision_name)?;
        let mut template = revision.data.0["spec"]["template"].clone();
        template.as_object_mut()?.remove("$patch");
        serde_json::from_value(template).ok()
    }
}

/// Name of a revision.
pub fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or_default()
}

/// Content of the `data` of a ControllerRevision, a strategic merge patch that replaces the template.
fn template_data(template: &PodTemplateSpec) -> Result<Value> {
    let mut data = serde_json::to_value(template).map_err(|source| Error::Encode { object: "pod template", source })?;
    data["$patch"] = json!("replace");
    Ok(data)
}

async fn create(
    context: &MemberContext,
    owner: &WorkloadOwner,
    template: &PodTemplateSpec,
    labels: &Value,
    data: Value,
    number: i64,
) -> Result<SharedObject<ControllerRevision>> {
    let mut collisions = 0;
    loop {
        let hash = template_hash(template, collisions)?;
        let mut labels = labels.clone();
        labels[HASH_LABEL] = json!(hash);
        let revision = json!({
            "metadata": {
                "name": format!("{}-{hash}", owner.subject.key.name), "namespace": &*owner.subject.key.namespace,
                "labels": labels, "ownerReferences": [owner.owner_reference()],
            },
            "data": data,
            "revision": number,
        });
        let revision: ControllerRevision = serde_json::from_value(revision)
            .map_err(|source| Error::Encode { object: "controller revision", source })?;
        match context.create(&context.revisions, &revision).await {
            Err(error) if error.is_conflict() && collisions < 10 => collisions += 1,
            outcome => return outcome,
        }
    }
}
