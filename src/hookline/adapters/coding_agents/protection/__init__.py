"""``hookline protect``: put Hookline's hooks into the settings of coding agents, prove that they work, take them out.

``hosts`` knows where each agent has its settings and how to start it, ``settings`` changes the text of a settings file,
``changes`` plans and writes files, and ``proof`` starts an agent with them against ``loopback_model``.
"""
