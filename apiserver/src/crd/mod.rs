//! CustomResourceDefinitions: validation, conditions, structural schemas, pruning, defaulting, CEL, conversion.
