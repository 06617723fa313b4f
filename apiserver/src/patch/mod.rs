//! JSON patch, merge patch, strategic merge patch.
