//! `StorageObjectInUseProtection` admission: new claims and volumes get a finalizer, which the protection controller
//! removes when they are deleted and no longer in use.

use async_trait::async_trait;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::admission::{Admission, Mutation, Operation};
use crowsnest_registry::object::Object;

pub const CLAIMS: &str = "persistentvolumeclaims";
pub const VOLUMES: &str = "persistentvolumes";

/// The admission plugin.
#[derive(Debug)]
pub struct StorageObjectInUseProtection;

/// The finalizer that protects the objects of a resource in the core group; `None` if they are not protected.
pub fn finalizer(plural: &str) -> Option<&'static str> {
    match plural {
        CLAIMS => Some("kubernetes.io/pvc-protection"),
        VOLUMES => Some("kubernetes.io/pv-protection"),
        _ => None,
    }
}

#[async_trait]
impl Admission for StorageObjectInUseProtection {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let gvr = &a.resource.gvr;
        let is_create = a.operation == Operation::Create && a.ctx.subresource.is_empty() && gvr.group.is_empty();
        let Some((object, finalizer)) = object.filter(|_| is_create).zip(finalizer(&gvr.resource)) else {
            return Ok(());
        };
        let mut finalizers = object.finalizers();
        if !finalizers.iter().any(|existing| existing == finalizer) {
            finalizers.push(finalizer.to_owned());
            object.set_finalizers(finalizers);
        }
        Ok(())
    }
}
