//! crowsnest-embedded
