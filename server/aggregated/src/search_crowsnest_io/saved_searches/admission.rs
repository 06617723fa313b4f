//! Admission of saved searches, as clients see them, by the policies and webhooks of the control plane.

use crowsnest_api::storage::StoredSearch;
use crowsnest_apimachinery::request::options::{FieldValidation, WriteOptions};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_registry::admission::Operation;
use kube::api::DeleteParams;
use parking_lot::Mutex;
use serde_json::Value;

use super::body::SavedSearchBody;
use super::{to_public, validate_spec};
use crate::admission::{AdmissionRequest, OperationDetails};
use crate::request::context::RequestContext;
use crate::server::AggregatedServer;

/// Admission of the writes of one request; collects the warnings.
pub(super) struct SearchAdmission<'r> {
    server: &'r AggregatedServer,
    context: &'r RequestContext,
    warnings: Mutex<Vec<String>>,
}

impl<'r> SearchAdmission<'r> {
    pub(super) fn new(server: &'r AggregatedServer, context: &'r RequestContext) -> Self {
        Self { server, context, warnings: Mutex::default() }
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings.into_inner()
    }

    fn request(
        &self,
        operation: Operation,
        name: &str,
        options: (Value, bool),
    ) -> Result<AdmissionRequest<'r>, ApiError> {
        let found = self.context.attributes.route.resource_route().ok_or_else(ApiError::unknown_resource)?;
        let (options, dry_run) = options;
        let details = OperationDetails { operation, name, subresource: "", options, dry_run };
        Ok(self.server.admission.request(self.context, found, details))
    }

    /// Admits a create, or an update of `before`. Returns the search with the changes of mutating admission.
    pub(super) async fn admit_write(
        &self,
        mut saved: StoredSearch,
        before: Option<&StoredSearch>,
        options: &WriteOptions,
    ) -> Result<StoredSearch, ApiError> {
        let operation = if before.is_some() { Operation::Update } else { Operation::Create };
        let name = saved.metadata.name.clone().unwrap_or_default();
        let request = self.request(operation, &name, (options.raw.clone(), options.dry_run))?;
        if !request.applicable_phases().await?.any() {
            return Ok(saved);
        }
        let (base, old) = (to_admission_object(&saved), before.map(to_admission_object));
        let (mut object, mut warnings) = (base.clone(), Vec::new());
        let mut admitted = request.mutate(Some(&mut object), old.as_ref(), &mut warnings).await;
        if admitted.is_ok() && object != base {
            let sent = SavedSearchBody::parse(object.clone(), FieldValidation::Ignore)?;
            sent.check_name(&name)?;
            saved.spec = validate_spec(sent.spec, &name, &saved.spec.owner)?;
            sent.metadata.apply_to(&mut saved.metadata);
            object = to_admission_object(&saved);
        }
        if admitted.is_ok() {
            admitted = request.validate(Some(&object), old.as_ref(), &mut warnings).await;
        }
        self.warnings.lock().append(&mut warnings);
        admitted.map(|()| saved)
    }

    pub(super) async fn admit_delete(&self, saved: &StoredSearch, params: &DeleteParams) -> Result<(), ApiError> {
        let name = saved.metadata.name.as_deref().unwrap_or_default();
        let options = serde_json::to_value(params).map_err(ApiError::internal)?;
        let request = self.request(Operation::Delete, name, (options, params.dry_run))?;
        if !request.applicable_phases().await?.any() {
            return Ok(());
        }
        let (old, mut warnings) = (to_admission_object(saved), Vec::new());
        let mut admitted = request.mutate(None, Some(&old), &mut warnings).await;
        if admitted.is_ok() {
            admitted = request.validate(None, Some(&old), &mut warnings).await;
        }
        self.warnings.lock().append(&mut warnings);
        admitted
    }
}

/// The public form of a search for admission, without unset metadata.
fn to_admission_object(saved: &StoredSearch) -> Value {
    let mut object = to_public(saved);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| !value.is_null());
    }
    object
}
