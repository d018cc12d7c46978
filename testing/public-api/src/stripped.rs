//! Items without what their users do not see: documentation, bodies, private fields.

use syn::{
    Attribute, Block, Field, Fields, ImplItem, Item, ItemImpl, TraitItem, Visibility, parse_quote,
    punctuated::Punctuated,
};

/// Whether users see the item by itself.
pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns the item as users see it, under this name if it is renamed; `None` if it is private.
/// Modules, `use` items and impls are none of this function's.
pub fn item(item: &Item, rename: Option<&syn::Ident>) -> Option<Item> {
    let mut item = item.clone();
    macro_rules! public {
        ($item:ident) => {{
            if !is_public(&$item.vis) {
                return None;
            }
            keep_attributes(&mut $item.attrs);
        }};
        ($item:ident, $ident:expr) => {{
            public!($item);
            if let Some(rename) = rename {
                $ident = rename.clone();
            }
        }};
    }
    match &mut item {
        Item::Const(it) => public!(it, it.ident),
        Item::Static(it) => public!(it, it.ident),
        Item::Type(it) => public!(it, it.ident),
        Item::Fn(it) => {
            public!(it, it.sig.ident);
            *it.block = empty();
        }
        Item::Struct(it) => {
            public!(it, it.ident);
            fields(&mut it.fields);
        }
        Item::Enum(it) => {
            public!(it, it.ident);
            for variant in &mut it.variants {
                keep_attributes(&mut variant.attrs);
                for field in &mut variant.fields {
                    keep_attributes(&mut field.attrs);
                }
            }
        }
        Item::Trait(it) => {
            public!(it, it.ident);
            for item in &mut it.items {
                trait_item(item);
            }
        }
        _ => return None,
    }
    Some(item)
}

/// Returns an impl with its public items; of a trait's impl only the associated types and constants,
/// because the trait has the signatures. `None` if nothing is public.
pub fn impl_block(block: &ItemImpl) -> Option<ItemImpl> {
    let mut block = block.clone();
    keep_attributes(&mut block.attrs);
    let of_trait = block.trait_.is_some();
    block.items.retain_mut(|item| match item {
        ImplItem::Fn(it) => {
            keep_attributes(&mut it.attrs);
            it.block = empty();
            !of_trait && is_public(&it.vis)
        }
        ImplItem::Const(it) => {
            keep_attributes(&mut it.attrs);
            of_trait || is_public(&it.vis)
        }
        ImplItem::Type(it) => {
            keep_attributes(&mut it.attrs);
            true
        }
        _ => false,
    });
    (of_trait || !block.items.is_empty()).then_some(block)
}

fn trait_item(item: &mut TraitItem) {
    match item {
        TraitItem::Fn(it) => {
            keep_attributes(&mut it.attrs);
            // That there is a default matters, and not what it does.
            it.default = it.default.as_ref().map(|_| empty());
        }
        TraitItem::Const(it) => keep_attributes(&mut it.attrs),
        TraitItem::Type(it) => keep_attributes(&mut it.attrs),
        _ => {}
    }
}

/// Leaves the public fields. Private ones are one field `_private: _`: no other crate can name all
/// fields then.
fn fields(fields: &mut Fields) {
    let public = |all: &Punctuated<Field, syn::token::Comma>| -> Vec<Field> {
        let mut kept: Vec<Field> =
            all.iter().filter(|field| is_public(&field.vis)).cloned().collect();
        kept.iter_mut().for_each(|field| keep_attributes(&mut field.attrs));
        kept
    };
    match fields {
        Fields::Named(named) => {
            let mut kept = public(&named.named);
            if kept.len() < named.named.len() {
                let private: syn::FieldsNamed = parse_quote!({ _private: _ });
                kept.extend(private.named);
            }
            named.named = kept.into_iter().collect();
        }
        Fields::Unnamed(unnamed) => {
            for field in &mut unnamed.unnamed {
                keep_attributes(&mut field.attrs);
                if !is_public(&field.vis) {
                    field.ty = parse_quote!(_);
                }
            }
        }
        Fields::Unit => {}
    }
}

fn keep_attributes(attributes: &mut Vec<Attribute>) {
    const KEPT: [&str; 5] = ["derive", "non_exhaustive", "cfg", "must_use", "deprecated"];
    attributes.retain(|attribute| {
        let path = attribute.path();
        KEPT.iter().any(|kept| path.is_ident(kept)) || is_conditional_derive(attribute)
    });
}

fn is_conditional_derive(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg_attr")
        && attribute
            .meta
            .require_list()
            .is_ok_and(|list| list.tokens.to_string().contains("derive"))
}

fn empty() -> Block {
    parse_quote!({})
}
