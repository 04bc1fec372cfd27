"""The schema of entries of the public registry of deployments, as JSON schema: the fields that Discreet fills."""

from __future__ import annotations

TEXT = {"type": "string", "minLength": 1}


def _object(required=(), **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required or properties),
        "properties": properties,
    }


def _one_of(*values):
    return {"enum": list(values)}


TEXTS = {"type": "array", "items": TEXT, "minItems": 1}

SCHEMA = _object(
    url_slug={"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"},
    status=_one_of("Draft", "Pending", "Approved"),
    tier=_one_of(1, 2, 3),
    deployment=_object(
        basic=_object(
            name=TEXT,
            data_curators=TEXTS,
            intended_use=TEXT,
            description=TEXT,
            data_product_type=_one_of("Summary statistics", "Interactive API", "SQL queries"),
            data_product_region=TEXT,
            publication_date={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        ),
        dp_variant=_object(
            variant_name=_one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=_object(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            privacy_parameters={
                "type": "object",
                "additionalProperties": False,
                "properties": {name: {"type": "number", "exclusiveMinimum": 0} for name in ("epsilon", "delta", "rho")},
            },
            privacy_parameters_details=TEXT,
        ),
        deployment_model=_object(
            model_name=_one_of("Local", "Central", "Shuffle", "Federated"),
            model_name_details=TEXT,
            actors={"type": "string"},
            release_type=_one_of("One release", "Many releases"),
            release_type_details=TEXT,
            data_source_type=_one_of("Static", "Dynamic"),
            access_type=_one_of("Interactive", "Non-interactive"),
            access_type_details=TEXT,
        ),
        accounting=_object(post_processing=TEXT, composition=TEXT),
        implementation=_object(preprocessing_and_hyperparameter_tuning=TEXT, mechanisms=TEXT, justification=TEXT),
        administrative=_object(notes=TEXT, registry_authors=TEXTS),
    ),
)
