from ._foreign import AdapterOptions as AdapterOptions
