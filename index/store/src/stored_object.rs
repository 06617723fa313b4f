//! Objects as lists read them: the record is decoded, the body is still compressed.

use crate::codec::Codec;
use crate::record::{Object, Record};
use crate::{CompressedBody, Error};
use bytes::Bytes;
use std::sync::Arc;

/// An object as read from the store. A list sends one object after the other, so it decompresses one body at a time
/// instead of keeping all bodies of a page.
#[derive(Debug, Clone)]
pub struct StoredObject {
    pub record: Arc<Record>,
    pub body: StoredBody,
}

/// The body of a [`StoredObject`].
#[derive(Debug, Clone)]
pub enum StoredBody {
    Compressed(CompressedBody),
    Plain(Bytes),
}

impl From<Object> for StoredObject {
    fn from(Object { record, body }: Object) -> Self {
        Self { record, body: StoredBody::Plain(body) }
    }
}

impl StoredObject {
    /// The object with its decompressed body.
    pub fn unpack(self, codec: &Codec) -> Result<Object, Error> {
        let body = match self.body {
            StoredBody::Plain(body) => body,
            StoredBody::Compressed(packed) => codec.unpack(&packed.bytes, packed.dictionary)?,
        };
        Ok(Object { record: self.record, body })
    }
}

impl StoredBody {
    /// The JSON of the body. A compressed body is decompressed into `buffer`, whose contents it replaces.
    pub fn read<'b>(&'b self, codec: &Codec, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Error> {
        match self {
            Self::Plain(body) => Ok(&body[..]),
            Self::Compressed(packed) => {
                codec.unpack_into(&packed.bytes, packed.dictionary, buffer)?;
                Ok(&buffer[..])
            }
        }
    }

    /// Length of the decompressed body in bytes; 0 if a compressed body contains no valid length.
    pub fn plain_length(&self) -> usize {
        match self {
            Self::Plain(body) => body.len(),
            Self::Compressed(packed) => packed.plain_length().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stored;
    use serde_json::json;

    #[test]
    fn bodies_are_read_in_either_form() {
        let codec = Codec::default();
        let object = stored("member1", 1, &json!({"kind": "Pod", "metadata": {"name": "a"}}));
        let (packed, _) = codec.pack("/Pod", &object.body).unwrap();
        let compressed = StoredObject { record: object.record.clone(), body: StoredBody::Compressed(packed) };
        // The buffer is reused, so it contains an earlier and longer body.
        let mut buffer = vec![b'x'; 1000];
        for stored in [compressed, object.clone().into()] {
            assert_eq!(stored.body.plain_length(), object.body.len());
            assert_eq!(object.body, stored.body.read(&codec, &mut buffer).unwrap());
            assert_eq!(stored.unpack(&codec).unwrap().body, object.body);
        }
        let damaged = StoredBody::Compressed(CompressedBody { dictionary: 0, bytes: b"damage".to_vec() });
        assert_eq!(damaged.plain_length(), 0);
        assert!(damaged.read(&codec, &mut buffer).is_err());
    }
}
