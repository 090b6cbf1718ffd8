"""Channel that exchanges messages with devices through an MQTT broker."""
