//! Objects without the values of Secrets, from which documents are created and which hits contain.

use crowsnest_store::ingest::without_secret_values;
use crowsnest_store::{Error, Object};
use std::borrow::Cow;
use std::ops::Deref;

/// An object without values of Secrets. The only constructor removes them, so a function that takes this type need not
/// remove them again.
#[derive(Debug)]
pub struct RedactedObject<'o>(Cow<'o, Object>);

impl<'o> RedactedObject<'o> {
    /// Removes the values of Secrets from an object. Fails if its body is not valid JSON.
    pub fn new(object: &'o Object) -> Result<Self, Error> {
        without_secret_values(object).map(Self)
    }

    /// The object without values of Secrets.
    pub fn into_object(self) -> Object {
        self.0.into_owned()
    }
}

impl Deref for RedactedObject<'_> {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.0
    }
}
